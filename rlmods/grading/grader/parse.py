"""Recursive-descent parser of answers. Nothing is evaluated here, and no text ever reaches `eval`
or a computer algebra system.

answer   = relation (separator relation)*                     1, 2 or 3;   x = 1 and y = 2 relation
= union (("=" | "<" | "in" | ...) union)*            0 < x <= 3 union    = ratio (("cup" | "cap" |
"setminus") ratio)*        [0, 1) cup {2} ratio    = sum (":" sum)*
2 : 3 : 5 sum      = product (("+" | "-" | "+-") product)* product  = factor (("*" | "/" | nothing)
factor)*             a unit may follow a factor; over words or a wide space it is a phrase factor
= "-" factor | atom ("^" factor | "!" | "%")*"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import reduce

from rlmods.grading.grader.style import HALF_DAYS
from rlmods.grading.grader.syntax import Cursor, Node, check_height, number
from rlmods.grading.grader.tokens import (
    FUNCTIONS,
    TRIGONOMETRIC,
    ParseError,
    Token,
    clean,
    tokenize,
)

RELATIONS = frozenset({"=", "<", ">", "<=", ">=", "!=", "~=", "in"})
_CLOSING = {"(": ")", "[": "]", r"\{": r"\}", "{": "}"}
_NO_ATOM = frozenset({"end", "choose", "over", "mod", "pmod", "rfloor", "rceil"})
_MATRICES = frozenset(("matrix", "pmatrix", "bmatrix", "array", "smallmatrix"))
_LISTS = frozenset(("cases", "aligned", "gathered", "align*", "gather*"))
_ABSTRACT_FUNCTIONS = frozenset("fghFGP")


def parse(text: str, *, thousands: bool = True) -> Node:
    """Return the syntax tree of an answer. Raises ParseError for a text that is not an answer, too
    deep or too long."""
    parser = _Parser(tokenize(clean(text), thousands=thousands))
    node = parser.over()
    if parser.peek.kind != "end":
        raise ParseError(f"unexpected {parser.peek.text!r}")
    return check_height(node)


class _Parser(Cursor):
    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.inside_bars = False

    def over(self) -> Node:
        r"""Parse an answer, or two around the old TeX commands `\over` and `\choose`."""
        node = self.answer()
        if self.accept("over"):
            return Node("/", (node, self.answer()))
        return Node("call", (node, self.answer()), "binom") if self.accept("choose") else node

    def answer(self) -> Node:
        items, separators = [self.relation()], set[str]()
        while self.peek.kind == "separator":
            while self.peek.kind == "separator":
                separators.add(self.peek.text)
                self.position += 1
            items.append(self.relation())
        return (
            items[0]
            if len(items) == 1
            else Node("list", tuple(items), "or" if "or" in separators else "and")
        )

    def relation(self) -> Node:
        items, operators = [self.union()], []
        while operator := self.accept(*RELATIONS):
            operators.append("in" if operator == "in" else operator)
            items.append(self.union())
        return Node("rel", tuple(items), " ".join(operators)) if operators else items[0]

    def union(self) -> Node:
        node = self.ratio()
        while operator := self.accept("cup", "cap", "setminus"):
            node = Node(operator, (node, self.ratio()))
        return node

    def ratio(self) -> Node:
        items = [self.sum()]
        while self.accept(":"):
            items.append(self.sum())
        last = items[-1]
        if len(items) > 1 and last.op == "unit" and last.text in HALF_DAYS:
            return Node("unit", (Node("ratio", (*items[:-1], last.args[0])),), last.text)
        return Node("ratio", tuple(items)) if len(items) > 1 else items[0]

    def sum(self) -> Node:
        sign = self.accept("+-", "-+", "+")
        node = self.product()
        if sign in ("+-", "-+"):
            node = Node("+-", (Node("number", value=Fraction(0)), node), sign)
        while operator := self.accept("+", "-", "+-", "-+"):
            right = self.product()
            if operator in ("+", "-"):
                node = Node("+", (node, right if operator == "+" else Node("neg", (right,))))
            else:
                node = Node("+-", (node, right), operator)
        return node

    def product(self, *, juxtaposed_only: bool = False) -> Node:
        node, worded = self.factor(), False
        while True:
            if self.peek.kind == "text":
                node, worded = self.unit(node), True
            elif not juxtaposed_only and self.accept("*"):
                node = Node("*", (node, self.factor()))
            elif not juxtaposed_only and self.accept("/"):
                node = Node("/", (node, self.factor()))
            elif not juxtaposed_only and self.accept("mod"):
                node = Node("mod", (node, self.factor()))
            elif self.accept("pmod"):
                start = self.position
                self.factor()
                node, worded = Node("unit", (node,), "^mod" + self.text_since(start)), True
            elif self.next_is_atom(function=not juxtaposed_only):
                apart = worded or self.peek.apart
                node = (
                    Node("phrase", (node, self.factor()))
                    if apart
                    else Node("*", (node, self.factor()), "adjacent")
                )
            else:
                return node

    def unit(self, node: Node) -> Node:
        """Parse a unit, or any words, after a quantity: kept by name, without effect on the
        value."""
        words = [self.peek.text]
        self.position += 1
        while True:
            if self.peek.kind == "text" or (
                self.next_is("/", "*") and self.tokens[self.position + 1].kind == "text"
            ):
                words.append(self.peek.text)
            elif self.next_is("^"):
                self.position += 1
                start = self.position
                self.script()
                words.append("^" + self.text_since(start))
                continue
            else:
                break
            self.position += 1
        return Node("unit", (node,), " ".join(words))

    def factor(self) -> Node:
        minuses = 0
        while sign := self.accept("-", "+"):
            minuses += sign == "-"
        with self.nested():
            node = self.postfix(self.atom())
        return reduce(lambda node, _: Node("neg", (node,)), range(minuses), node)

    def postfix(self, node: Node) -> Node:
        while True:
            if self.accept("^"):
                node = self.tower(node)
            elif self.accept("!"):
                node = Node("call", (node,), "!!") if self.accept("!") else Node("!", (node,))
            elif self.accept("%"):
                node = Node("%", (node,))
            elif self.accept("°"):
                node = Node("unit", (node,), "degree")
            else:
                return node

    def next_is_atom(self, *, function: bool) -> bool:
        """Return True if a factor follows without an operator. A number right after a number is a
        typo, not a product."""
        kind, text = self.peek.kind, self.peek.text
        if kind == "number":
            return self.tokens[self.position - 1].kind != "number"
        if kind == "op":
            return text in ("(", "{", "[") or (text == "|" and not self.inside_bars)
        return kind == "name" or (
            kind == "word" and text not in _NO_ATOM and (function or text not in FUNCTIONS)
        )

    def tower(self, base: Node) -> Node:
        """Parse exponents, right to left: 2^3^2 is 2^9."""
        levels = [base, self.script()]
        while self.accept("^"):
            levels.append(self.script())
        return reduce(lambda exponent, base: Node("^", (base, exponent)), reversed(levels))

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
        start, depth = self.position, self.depth
        try:
            return self.script()
        except ParseError:
            self.position, self.depth = start, depth
        self.expect("{")
        level = 1
        while level:
            if self.peek.kind == "end":
                raise ParseError("unclosed subscript")
            level += self.next_is("{", r"\{") - self.next_is("}", r"\}")
            self.position += 1
        return Node("text", text=self.text_since(start))

    def atom(self) -> Node:
        with self.nested():
            return self.single()

    def single(self) -> Node:
        kind, text = self.peek.kind, self.peek.text
        if kind in ("number", "name", "text", "word"):
            self.position += 1
        if kind == "number":
            return self.number_atom(number(text))
        if kind == "name":
            return self.symbol(text)
        if kind == "text":
            return Node("text", text=text)
        if kind == "word":
            return self.word(text)
        if self.next_is("(", "[", "{", r"\{"):
            node = self.group()
            return self.number_atom(node) if node.op == "number" and self.next_is("_") else node
        if self.next_is("|") and not self.inside_bars:
            return self.bars()
        raise ParseError(f"unexpected {text!r}")

    def number_atom(self, node: Node) -> Node:
        whole = node.value is not None and node.text.isdecimal()
        if whole and self.next_is("_"):
            self.position += 1
            return Node("base", (node, self.script()), node.text)
        if whole and (fraction := self.mixed_part()) is not None:
            return Node("+", (node, fraction), "mixed")
        return node

    def mixed_part(self) -> Node | None:
        r"""Parse the fraction of a mixed number, `2\frac{1}{3}` or `2 1/3`. Without one, return
        None and consume nothing."""
        start = self.position
        if self.peek.apart:
            return None
        if self.next_is("frac"):
            self.position += 1
            node = self.word("frac")
            if all(arg.op == "number" and arg.text.isdecimal() for arg in node.args):
                return node
        elif self.peek.kind == "number":
            texts = [token.text for token in self.tokens[start : start + 3]]
            if (
                len(texts) == 3
                and texts[1] == "/"
                and texts[0].isdecimal()
                and texts[2].isdecimal()
            ):
                self.position += 3
                return Node("/", (number(texts[0]), number(texts[2])))
        self.position = start
        return None

    def symbol(self, name: str) -> Node:
        primes = ""
        while self.accept("'"):
            primes += "'"
        node = Node("name", text=name + primes)
        if self.accept("_"):
            node = Node("name", (self.subscript(),), name + primes)
        if name in _ABSTRACT_FUNCTIONS and self.next_is("("):
            inside = self.group()
            return Node("apply", (node, *(inside.args if inside.op == "group" else (inside,))))
        return node

    def group(self) -> Node:
        """Parse brackets of any kind. One item in round brackets or braces is that item; several
        are a tuple, interval, list or set."""
        opening = self.expect(*_CLOSING)
        bars, self.inside_bars = self.inside_bars, False
        closings = (")", "]") if opening in ("(", "[") else (_CLOSING[opening],)
        if opening == r"\{":
            self.set_builder()
        empty = opening == r"\{" and self.next_is(*closings)
        content = Node("list") if empty else self.over() if opening == "{" else self.answer()
        closing = self.expect(*closings)
        self.inside_bars = bars
        if opening == r"\{" and content.op == "rel":
            return content
        if opening == "{" or (opening == "(" and closing == ")" and content.op != "list"):
            return content
        return Node(
            "group", content.args if content.op == "list" else (content,), opening + closing
        )

    def set_builder(self) -> None:
        r"""Read over `x \mid` or `x \in \mathbb{R} :`, so that the condition that follows is the
        set."""
        names = [
            token.text
            if token.kind in ("name", "word")
            else token.text * (token.text in ("in", "|", ":"))
            for token in self.tokens
        ]
        rest = names[self.position : self.position + 4]
        if self.peek.kind == "name" and len(rest) > 1 and rest[1] in ("|", ":"):
            self.position += 2
        elif self.peek.kind == "name" and rest[1:3] == ["in", "reals"] and rest[3] in ("|", ":"):
            self.position += 4

    def bars(self) -> Node:
        self.expect("|")
        self.inside_bars = True
        inside = self.sum()
        self.inside_bars = False
        self.expect("|")
        return Node("abs", (inside,))

    def word(self, name: str) -> Node:
        if name == "emptyset":
            return Node("group", text=r"\{\}")
        if name == "reals":
            infinity = Node("constant", text="infty")
            return Node("group", (Node("neg", (infinity,)), infinity), "()")
        if name in ("pi", "infty"):
            return Node("constant", text=name)
        if name == "frac":
            return Node("/", (self.argument(), self.argument()))
        if name == "binom":
            return Node("call", (self.argument(), self.argument()), "binom")
        if name in ("lfloor", "lceil"):
            inside = self.sum()
            self.expect("r" + name[1:])
            return Node("floor" if name == "lfloor" else "ceil", (inside,))
        if name in ("sum", "prod"):
            return self.series(name)
        if name == "int":
            return self.integral()
        if name in ("overline", "bar", "hat", "tilde"):
            return Node("apply", (self.argument(),), name)
        if name == "begin":
            return self.matrix()
        if name in FUNCTIONS:
            return self.call(name)
        raise ParseError(f"unexpected {name}")

    def argument(self) -> Node:
        r"""Parse an argument as LaTeX does: a brace group, or one token, and of a number only its
        first digit (`\frac12`)."""
        token = self.peek
        if token.kind == "number" and len(token.text) > 1 and token.text.isdecimal():
            self.tokens[self.position] = Token("number", token.text[1:])
            return number(token.text[0])
        if token.kind == "number":
            self.position += 1
            return number(token.text)
        return self.atom()

    def call(self, name: str) -> Node:
        if name == "sqrt":
            return self.root()
        power = subscript = None
        while operator := self.accept("^", "_"):
            power, subscript = (
                (self.script(), subscript) if operator == "^" else (power, self.script())
            )
        if self.next_is("(", "{"):
            inside = self.group()
            args = inside.args if inside.op in ("group", "list") else (inside,)
        else:
            args = (self.call_without_brackets(),)
        if name == "log" and subscript is not None:
            args = (*args, subscript)
        if power == Node("neg", (number("1"),)):
            return Node("call", args, "arc" + name)
        node = Node("call", tuple(map(_in_radians, args)) if name in TRIGONOMETRIC else args, name)
        return node if power is None else Node("^", (node, power))

    def call_without_brackets(self) -> Node:
        r"""Parse an unbracketed argument: `\sin 2x \cos y` is sin(2x) cos(y), `\sin x / 2` is
        sin(x) / 2, `\sin \sin x` nests."""
        if self.peek.kind == "word" and self.peek.text in FUNCTIONS:
            return self.factor()
        return self.product(juxtaposed_only=True)

    def root(self) -> Node:
        degree: Node | None = None
        if self.accept("["):
            degree = self.sum()
            self.expect("]")
        inside = self.group() if self.next_is("{", "(") else self.atom()
        return Node("call", (inside,) if degree is None else (inside, degree), "sqrt")

    def series(self, name: str) -> Node:
        self.expect("_")
        start = self.script()
        if start.op != "rel" or start.text != "=" or start.args[0].op != "name":
            raise ParseError("a series needs its variable and start")
        self.expect("^")
        stop = self.script()
        return Node(name, (start.args[1], stop, self.product()), start.args[0].text)

    def integral(self) -> Node:
        r"""Parse `\int_a^b f(x) dx`, whose differential ends it."""
        self.expect("_")
        low = self.script()
        self.expect("^")
        high = self.script()
        names = [token.text if token.kind == "name" else "" for token in self.tokens]
        end = next(
            (
                at
                for at in range(self.position, len(names) - 1)
                if names[at] == "d" and names[at + 1]
            ),
            None,
        )
        if end is None:
            raise ParseError("an integral needs its differential")
        body = _Parser([*self.tokens[self.position : end], Token("end", "")])
        body.depth = self.depth
        inside = Node("number", text="1", value=Fraction(1)) if end == self.position else body.sum()
        if end != self.position and body.peek.kind != "end":
            raise ParseError("not an integrand")
        self.position = end + 2
        return Node("int", (low, high, inside), names[end + 1])

    def matrix(self) -> Node:
        environment = self.environment_name()
        if environment == "array" and self.accept("{"):
            while not self.accept("}"):
                if self.peek.kind == "end":
                    raise ParseError("unclosed array")
                self.position += 1
        rows: list[tuple[Node, ...]] = [()]
        while not self.accept("end"):
            rows[-1] += (self.relation(),)
            while self.peek.kind == "separator" and environment in _LISTS:
                self.position += 1
            while separator := self.accept("&", "\\\\"):
                if separator == "\\\\" and not self.next_is("end"):
                    rows.append(())
        if self.environment_name() != environment or len({len(row) for row in rows}) != 1:
            raise ParseError("not a rectangular matrix")
        if environment in _LISTS:
            if len(rows[0]) != 1:
                raise ParseError("not a list of equations")
            return Node("list", tuple(row[0] for row in rows)) if len(rows) > 1 else rows[0][0]
        if len(rows) == len(rows[0]) == 1:
            return rows[0][0]
        return Node("matrix", tuple(Node("row", row) for row in rows))

    def environment_name(self) -> str:
        self.expect("{")
        name = ""
        while not self.accept("}"):
            if self.peek.kind == "end":
                raise ParseError("unclosed environment")
            name += self.peek.text
            self.position += 1
        if name not in _MATRICES | _LISTS:
            raise ParseError(f"unknown environment {name}")
        return name


def _in_radians(node: Node) -> Node:
    """Return an angle with each part in degrees converted."""
    if node.op == "unit" and node.text in ("degree", "degrees"):
        return Node("*", (node.args[0], Node("/", (Node("constant", text="pi"), number("180")))))
    return replace(node, args=tuple(map(_in_radians, node.args)))
