"""Teachers: models whose distributions the policy is trained towards (distillation)."""

from rlmods.teacher.local import Local
from rlmods.teacher.self_teacher import SelfTeacher
from rlmods.teacher.server import Server

__all__ = ["Local", "SelfTeacher", "Server"]
