r"""Recursive-descent parser of answers. Nothing is evaluated here, and no text ever reaches `eval`
or a computer algebra system.

    answer   = relation (separator relation)*                     1, 2 or 3;   x = 1 and y = 2
    relation = union (("=" | "<" | "in" | ...) union)*            0 < x <= 3
    union    = ratio (("cup" | "cap" | "setminus") ratio)*        [0, 1) cup {2}
    ratio    = sum (":" sum)*                                     2 : 3 : 5
    sum      = product (("+" | "-" | "+-") product)*
    product  = factor (("*" | "/" | nothing) factor)*             a unit may follow a factor; over
                                                                  words or a wide space it is a
                                                                  phrase
    factor   = "-" factor | atom ("^" factor | "!" | "%")*
"""

from collections.abc import Callable
from dataclasses import replace

from rlmods.grading.grader.style import clean
from rlmods.grading.grader.syntax import (
    EMPTY_SET,
    FUNCTIONS,
    INFINITY,
    REALS,
    TRIGONOMETRIC,
    Node,
    ParseError,
    Token,
    TooDeepError,
    number,
    tokenize,
    word_set,
)

RELATIONS = frozenset(("=", "<", ">", "<=", ">=", "!=", "~=", "in"))
_CLOSING = {"(": ")", "[": "]", r"\{": r"\}", "{": "}"}
_NO_ATOM = word_set("choose over mod pmod")
_MATRICES = word_set("matrix pmatrix bmatrix vmatrix array smallmatrix")
_LISTS = word_set("cases aligned gathered align* gather*")
_CONSTANTS = {
    "emptyset": EMPTY_SET,
    "reals": REALS,
    "pi": Node("constant", text="pi"),
    "infty": INFINITY,
}
_ABSTRACT_FUNCTIONS = frozenset("fghFGP")


def parse(text: str, *, thousands: bool = True) -> Node:
    """Return the syntax tree of an answer. Raises ParseError for a text that is not an answer, too
    deep or too long."""
    parser = _Parser(tokenize(clean(text), thousands=thousands))
    try:
        return parser.whole(parser.over)
    except RecursionError:
        raise TooDeepError("nested too deeply") from None


class _Parser:
    """Position in a list of tokens, and a method for each rule of the grammar."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.position = 0
        self.inside_bars = False

    @property
    def peek(self) -> Token:
        return self.tokens[self.position]

    def next_is(self, *texts: str) -> bool:
        return self.peek.kind in ("op", "word") and self.peek.text in texts

    def accept(self, *texts: str) -> str | None:
        return self.advance() if self.next_is(*texts) else None

    def expect(self, *texts: str) -> str:
        if not self.next_is(*texts):
            raise ParseError(f"expected {' or '.join(texts)}, got {self.peek.text!r}")
        return self.advance()

    def advance(self) -> str:
        """Read one token, and return its text. Raises ParseError at the end."""
        token = self.peek
        if token.kind == "end":
            raise ParseError("unexpected end")
        self.position += 1
        return token.text

    def text_since(self, start: int) -> str:
        """Return the text read since position `start`, without enclosing braces."""
        return "".join(token.text for token in self.tokens[start : self.position]).strip("{}")

    def whole(self, rule: Callable[[], Node]) -> Node:
        node = rule()
        if self.peek.kind != "end":
            raise ParseError(f"unexpected {self.peek.text!r}")
        return node

    def over(self) -> Node:
        r"""Parse an answer, or two around the old TeX commands `\over` and `\choose`."""
        node = self.answer()
        if self.accept("over"):
            return Node("/", (node, self.answer()))
        if self.accept("choose"):
            return Node("call", (node, self.answer()), "binom")
        return node

    def answer(self) -> Node:
        items = [self.relation()]
        separators = set()
        while self.peek.kind == "separator":
            separators.add(self.advance())
            if self.peek.kind != "separator":
                items.append(self.relation())
        if len(items) == 1:
            return items[0]
        return Node("list", tuple(items), "or" if "or" in separators else "and")

    def chain(self, item: Callable[[], Node], *operators: str) -> tuple[list[Node], list[str]]:
        items = [item()]
        found = []
        while self.next_is(*operators):
            found.append(self.advance())
            items.append(item())
        return items, found

    def relation(self) -> Node:
        items, operators = self.chain(self.union, *RELATIONS)
        return Node("rel", tuple(items), " ".join(operators)) if operators else items[0]

    def union(self) -> Node:
        (node, *others), operators = self.chain(self.ratio, "cup", "cap", "setminus")
        for operator, other in zip(operators, others, strict=True):
            node = Node(operator, (node, other))
        return node

    def ratio(self) -> Node:
        items, operators = self.chain(self.sum, ":")
        return Node("ratio", tuple(items)) if operators else items[0]

    def sum(self) -> Node:
        sign = self.accept("+-", "-+", "+")
        (node, *others), operators = self.chain(self.product, "+", "-", "+-", "-+")
        if sign in ("+-", "-+"):
            node = Node("+-", (number("0"), node), sign)
        for operator, other in zip(operators, others, strict=True):
            if operator in ("+-", "-+"):
                node = Node("+-", (node, other), operator)
            else:
                node = Node("+", (node, Node("neg", (other,)) if operator == "-" else other))
        return node

    def product(self, *, juxtaposed_only: bool = False) -> Node:
        node = self.factor()
        worded = False
        while True:
            if self.peek.kind == "text":
                node = Node("unit", (node,), self.unit())
                worded = True
            elif not juxtaposed_only and self.next_is("*", "/", "mod"):
                operator = self.advance()
                node = Node(operator, (node, self.factor()))
            elif self.accept("pmod"):
                start = self.position
                self.factor()
                node = Node("unit", (node,), "^mod" + self.text_since(start))
                worded = True
            elif self.next_is_atom(function=not juxtaposed_only):
                apart = worded or self.peek.apart
                pair = (node, self.factor())
                node = Node("phrase", pair) if apart else Node("*", pair, "adjacent")
            else:
                return node

    def unit(self) -> str:
        """Read a unit, or any words, after a quantity: kept by name, without effect on the
        value."""
        words = [self.advance()]
        while True:
            if self.accept("^"):
                start = self.position
                self.script()
                words.append("^" + self.text_since(start))
            elif self.peek.kind == "text" or (
                self.next_is("/", "*") and self.tokens[self.position + 1].kind == "text"
            ):
                words.append(self.advance())
            else:
                return " ".join(words)

    def factor(self) -> Node:
        if self.accept("+"):
            return self.factor()
        if self.accept("-"):
            return Node("neg", (self.factor(),))
        return self.postfix(self.atom())

    def postfix(self, node: Node) -> Node:
        while self.next_is("^", "!", "%", "°"):
            operator = self.advance()
            if operator == "^":
                node = Node("^", (node, self.exponent()))
            elif operator == "°":
                node = Node("unit", (node,), "degree")
            else:
                node = Node(operator, (node,))
        return node

    def exponent(self) -> Node:
        """Parse an exponent, right to left: 2^3^2 is 2^9."""
        node = self.script()
        return Node("^", (node, self.exponent())) if self.accept("^") else node

    def next_is_atom(self, *, function: bool) -> bool:
        """Return True if a factor follows without an operator. A number right after a number is a
        typo, not a product."""
        kind = self.peek.kind
        text = self.peek.text
        if kind == "number":
            return self.tokens[self.position - 1].kind != "number"
        if kind == "op":
            return text in ("(", "{", "[") or (text == "|" and not self.inside_bars)
        if kind == "word":
            return text not in _NO_ATOM and (function or text not in FUNCTIONS)
        return kind in ("name", "begin")

    def script(self) -> Node:
        """Parse a superscript or subscript: a braced expression, or a single signed atom."""
        if self.accept("{"):
            node = self.relation()
            self.expect("}")
            return node
        return Node("neg", (self.atom(),)) if self.accept("-") else self.atom()

    def subscript(self) -> Node:
        r"""Parse the subscript of a name: an expression, or otherwise any text in braces, as of
        `S_{max}`."""
        start = self.position
        try:
            return self.script()
        except ParseError:
            self.position = start
        self.expect("{")
        level = 1
        while level:
            level += self.next_is("{", r"\{") - self.next_is("}", r"\}")
            self.advance()
        return Node("text", text=self.text_since(start))

    def atom(self) -> Node:
        kind = self.peek.kind
        if kind == "number":
            return self.number_atom(number(self.advance()))
        if kind == "name":
            return self.symbol(self.advance())
        if kind == "text":
            return Node("text", text=self.advance())
        if kind == "word":
            return self.word(self.advance())
        if kind == "begin":
            return self.matrix(self.advance())
        if self.next_is(*_CLOSING):
            node = self.group()
            bracketed = node.op == "number" and self.next_is("_")
            return self.number_atom(node) if bracketed else node
        if self.next_is("|") and not self.inside_bars:
            return self.bars()
        raise ParseError(f"unexpected {self.peek.text!r}")

    def number_atom(self, node: Node) -> Node:
        if not node.text.isdecimal():
            return node
        if self.accept("_"):
            return Node("base", (node, self.script()), node.text)
        fraction = self.mixed_part()
        return node if fraction is None else Node("+", (node, fraction), "mixed")

    def mixed_part(self) -> Node | None:
        r"""Parse the fraction of a mixed number, `2\frac{1}{3}` or `2 1/3`. Without one, return
        None and consume nothing."""
        start = self.position
        if self.peek.apart:
            return None
        if self.accept("frac"):
            node = self.word("frac")
            if all(arg.op == "number" and arg.text.isdecimal() for arg in node.args):
                return node
            self.position = start
        texts = [token.text for token in self.tokens[start : start + 3]]
        if len(texts) == 3 and texts[1] == "/" and (texts[0] + texts[2]).isdecimal():
            self.position += 3
            return Node("/", (number(texts[0]), number(texts[2])))
        return None

    def symbol(self, name: str) -> Node:
        letter = name
        while self.accept("'"):
            name += "'"
        node = Node("name", text=name)
        if self.accept("_"):
            node = Node("name", (self.subscript(),), name)
        if letter in _ABSTRACT_FUNCTIONS and self.next_is("("):
            return Node("apply", (node, *self.arguments()))
        return node

    def arguments(self) -> tuple[Node, ...]:
        inside = self.group()
        return inside.args if inside.op in ("group", "list") else (inside,)

    def group(self) -> Node:
        """Parse brackets of any kind. One item in round brackets or braces is that item; several
        are a tuple, interval, list or set."""
        opening = self.expect(*_CLOSING)
        closings = (")", "]") if opening in ("(", "[") else (_CLOSING[opening],)
        bars = self.inside_bars
        self.inside_bars = False
        if opening == r"\{":
            self.set_builder()
        if opening == r"\{" and self.next_is(*closings):
            content = Node("list")
        else:
            content = self.over() if opening == "{" else self.answer()
        closing = self.expect(*closings)
        self.inside_bars = bars
        if opening == "{" or (opening == r"\{" and content.op == "rel"):
            return content
        if opening + closing == "()" and content.op != "list":
            return content
        items = content.args if content.op == "list" else (content,)
        return Node("group", items, opening + closing)

    def set_builder(self) -> None:
        r"""Read over `x \mid` or `x \in \mathbb{R} :`, so that the condition that follows is the
        set."""
        texts = [token.text for token in self.tokens[self.position + 1 : self.position + 4]]
        if texts[0] in ("|", ":"):
            self.position += 2
        elif texts[:2] == ["in", "reals"] and texts[2] in ("|", ":"):
            self.position += 4

    def bars(self) -> Node:
        self.expect("|")
        self.inside_bars = True
        inside = self.sum()
        self.inside_bars = False
        self.expect("|")
        return Node("abs", (inside,))

    def word(self, name: str) -> Node:
        if name in _CONSTANTS:
            return _CONSTANTS[name]
        if name in ("frac", "binom"):
            pair = (self.argument(), self.argument())
            return Node("/", pair) if name == "frac" else Node("call", pair, "binom")
        if name in ("sum", "prod"):
            return self.series(name)
        if name == "int":
            return self.integral()
        if name in ("overline", "bar", "hat", "tilde"):
            return Node("apply", (self.argument(),), name)
        if name == "sqrt":
            return self.root()
        if name in FUNCTIONS:
            return self.call(name)
        raise ParseError(f"unexpected {name}")

    def argument(self) -> Node:
        r"""Parse an argument as LaTeX does: a brace group, or one token, and of a number only its
        first digit (`\frac12`)."""
        token = self.peek
        if token.kind != "number":
            return self.atom()
        if len(token.text) == 1 or not token.text.isdecimal():
            return number(self.advance())
        self.tokens[self.position] = Token("number", token.text[1:])
        return number(token.text[0])

    def call(self, name: str) -> Node:
        scripts: dict[str, Node] = {}
        while self.next_is("^", "_"):
            operator = self.advance()
            scripts[operator] = self.script()
        if self.next_is("(", "{"):
            args = self.arguments()
        elif self.next_is(*FUNCTIONS):
            args = (self.factor(),)
        else:
            # \sin 2x \cos y is sin(2x) cos(y), \sin x / 2 is sin(x) / 2
            args = (self.product(juxtaposed_only=True),)
        if name == "log" and "_" in scripts:
            args = (*args, scripts["_"])
        power = scripts.get("^")
        if power == Node("neg", (number("1"),)):
            return Node("call", args, "arc" + name)
        if name in TRIGONOMETRIC:
            args = tuple(map(_in_radians, args))
        node = Node("call", args, name)
        return node if power is None else Node("^", (node, power))

    def root(self) -> Node:
        degree = self.group().args if self.next_is("[") else ()
        inside = self.group() if self.next_is("{", "(") else self.atom()
        return Node("call", (inside, *degree), "sqrt")

    def bounds(self) -> tuple[Node, Node]:
        self.expect("_")
        low = self.script()
        self.expect("^")
        return low, self.script()

    def series(self, name: str) -> Node:
        start, stop = self.bounds()
        if start.op != "rel" or start.text != "=" or start.args[0].op != "name":
            raise ParseError("a series needs its variable and start")
        return Node(name, (start.args[1], stop, self.product()), start.args[0].text)

    def integral(self) -> Node:
        r"""Parse `\int_a^b f(x) dx`, whose differential ends it."""
        low, high = self.bounds()
        start = self.position
        while self.peek.text != "d" or self.tokens[self.position + 1].kind != "name":
            self.advance()
        integrand = [*self.tokens[start : self.position], Token("end", "")]
        inner = _Parser(integrand)
        body = inner.whole(inner.sum) if len(integrand) > 1 else number("1")
        self.advance()
        return Node("int", (low, high, body), self.advance())

    def matrix(self, environment: str) -> Node:
        if environment not in _MATRICES | _LISTS:
            raise ParseError(f"unknown environment {environment}")
        rows: list[tuple[Node, ...]] = [()]
        while self.peek.kind != "close":
            rows[-1] += (self.relation(),)
            while self.next_is("&", "\\\\"):
                if self.advance() == "\\\\" and self.peek.kind != "close":
                    rows.append(())
        width = len(rows[0])
        too_wide = environment in _LISTS and width != 1
        is_ragged = any(len(row) != width for row in rows)
        if self.peek.text != environment or is_ragged or too_wide:
            raise ParseError("not a rectangular matrix, or not a list of equations")
        self.position += 1
        if len(rows) == width == 1:
            return rows[0][0]
        if environment in _LISTS:
            return Node("list", tuple(row[0] for row in rows))
        matrix = Node("matrix", tuple(Node("row", row) for row in rows))
        return Node("call", (matrix,), "det") if environment == "vmatrix" else matrix


def _in_radians(node: Node) -> Node:
    if node.op == "unit" and node.text in ("degree", "degrees"):
        return Node("*", (node.args[0], Node("/", (Node("constant", text="pi"), number("180")))))
    return replace(node, args=tuple(map(_in_radians, node.args)))
