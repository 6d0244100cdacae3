"""What generated programs are made of: for each feature of ordinary code, how it is set up, how a
host function reads it, and how the world changes it.

Enters: nothing. Leaves: `FEATURES`, in source text. ``{f}`` stands for a random number. Each read
is an expression for a number, each change a statement in the module of the program; a change may
raise if an earlier one removed what it changes.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CONDITIONS", "CORE", "FEATURES", "LOOPS", "MANAGERS", "WRAPPERS", "Feature"]


class Feature(NamedTuple):
    """A feature of ordinary code."""

    setup: str
    reads: tuple[str, ...]
    changes: tuple[str, ...]


CORE = """
import collections, contextlib, dataclasses, enum, functools, importlib, logging, math, os, sys
import threading, types, typing, warnings
import torch
from tests.plans.hosts import scaled, added

NUMBER = 2.0
COUNT = 3
FLAG = True
MODE = "fast"
LIST = [1.0, 2.0, 3.0]
TABLE = {"a": 1.0, "b": 2.0, "deep": {"a": [1.5]}}
WEIGHT = torch.arange(8.0)
LOG = []
def plus(a, b=1.0): return a + b
def noted(a):
    LOG.append(a)
    return a
"""

FEATURES: dict[str, Feature] = {
    "globals": Feature(
        "",
        ("NUMBER", "float(COUNT)", "float(len(MODE))", "(2.0 if FLAG else 3.0)"),
        (
            "NUMBER = {f}",
            "NUMBER = float(str(NUMBER))",
            "COUNT = int({f})",
            "FLAG = not FLAG",
            "MODE = 'slow' if MODE == 'fast' else 'fast'",
            "MODE = ''.join(list(MODE))",
            "max = min",
            "globals().pop('max', None)",
            "len = (lambda value: 7)",
            "globals().pop('len', None)",
        ),
    ),
    "lists": Feature(
        "ALIAS = LIST\nNESTED = [LIST, [4.0]]\nPAIR = (LIST, 2.0)",
        (
            "LIST[0]",
            "LIST[-1]",
            "sum(LIST)",
            "float(len(ALIAS))",
            "NESTED[0][0]",
            "PAIR[0][1]",
            "max(LIST)",
            "max(*LIST)",
            "sorted(LIST)[0]",
            "[v * 2 for v in LIST][0]",
            "sum([LIST, NESTED[1]], [])[0]",
            "float(str(LIST)[1:4])",
            "next(iter(LIST))",
            "(2.0 if 2.0 in LIST else 3.0)",
            "(2.0 if LIST == [1.0, 2.0, 3.0] else 3.0)",
            "(2.0 if ALIAS is NESTED[0] else 3.0)",
            "LIST[1:][0]",
            "min(max(pair) for pair in zip(LIST, NESTED[0]))",
            "{'k': LIST}['k'][0]",
            "float(('%s' % (LIST,))[1:4])",
            "math.fsum(LIST)",
        ),
        (
            "LIST[0] = {f}",
            "LIST.append({f})",
            "LIST[:] = [{f}, {f}, {f}]",
            "LIST = list(LIST)",
            "NESTED[0] = list(NESTED[0])",
            "NESTED[0][0] = {f}",
            "ALIAS = LIST",
            "LIST.reverse()",
            "PAIR = (NESTED[0], {f})",
        ),
    ),
    "dicts": Feature(
        "ORDERED = collections.OrderedDict(a=1.0, b=2.0)\n"
        "DEFAULT = collections.defaultdict(float, a=2.0)\n"
        "QUEUE = collections.deque([1.0, 2.0])\n"
        "SET = {1.0, 2.0}\nFROZEN = frozenset([8, 0])\nPROXY = types.MappingProxyType(TABLE)",
        (
            "TABLE['a']",
            "TABLE.get('b', 5.0)",
            "TABLE.get('c', 5.0)",
            "TABLE['deep']['a'][0]",
            "float(len(TABLE))",
            "list(ORDERED.values())[0]",
            "ORDERED['a']",
            "DEFAULT['a']",
            "QUEUE[0]",
            "sum(SET)",
            "float(list(FROZEN)[0])",
            "PROXY['a']",
            "{**TABLE}['a']",
            "(2.0 if 'c' in TABLE else 3.0)",
            "dict(TABLE, a=4.0)['b']",
            "(lambda **k: k['a'])(**ORDERED)",
            "sum(v for k, v in ORDERED.items())",
        ),
        (
            "TABLE['a'] = {f}",
            "TABLE['c'] = {f}",
            "TABLE.pop('c', None)",
            "TABLE['deep']['a'][0] = {f}",
            "TABLE['deep'] = {{'a': [{f}]}}",
            "TABLE = dict(TABLE)",
            "ORDERED.move_to_end('a')",
            "ORDERED['a'] = {f}",
            "DEFAULT['a'] = {f}",
            "QUEUE.rotate(1)",
            "SET.add({f})",
            "FROZEN = frozenset([0, 8]) if list(FROZEN)[0] else frozenset([8, 0])",
        ),
    ),
    "objects": Feature(
        """
class Base:
    constant = 2.0
    def inherited(self): return self.by + 1.0
    @property
    def computed(self): return self.by * 2.0
    @classmethod
    def of_class(cls): return cls.constant
    @staticmethod
    def static(value): return value + NUMBER
class Own(Base):
    def __init__(self, by=2.0): self.by, self.items = by, [by, 1.0]
    def above(self): return super().inherited()
    def __getitem__(self, key): return self.items[key]
class Other(Base):
    by = 9.0
    items = [9.0]
    def inherited(self): return 9.0
    def above(self): return 9.0
    def __getitem__(self, key): return 9.0
class Slotted:
    __slots__ = ("by", "more")
class Answering:
    def __getattr__(self, name):
        if name.startswith("__"): raise AttributeError(name)
        return NUMBER
OWN, SLOTTED, ANSWERING = Own(), Slotted(), Answering()
SLOTTED.by = 2.0
SPACE = types.SimpleNamespace(own=OWN, by=2.0)
BOUND = OWN.inherited
""",
        (
            "OWN.by",
            "OWN.constant",
            "OWN.inherited()",
            "OWN.computed",
            "OWN.of_class()",
            "Own.of_class()",
            "Base.static(1.0)",
            "OWN.above()",
            "OWN.items[0]",
            "OWN[0]",
            "SPACE.own.by",
            "SPACE.by",
            "SLOTTED.by",
            "getattr(SLOTTED, 'more', 5.0)",
            "getattr(OWN, 'by', 1.0)",
            "getattr(OWN, 'missing', 1.0)",
            "(2.0 if hasattr(OWN, 'missing') else 3.0)",
            "ANSWERING.anything",
            "BOUND()",
            "BOUND.__self__.by",
            "Own(3.0).by",
            "Own(NUMBER).inherited()",
            "(2.0 if isinstance(OWN, Base) else 3.0)",
            "(2.0 if OWN else 3.0)",
            "(2.0 if OWN == 3 else 3.0)",
            "float(len(type(OWN).__name__))",
            "type(OWN).constant",
        ),
        (
            "OWN.by = {f}",
            "OWN.constant = {f}",
            "OWN.__dict__.pop('constant', None)",
            "Own.constant = {f}",
            "Base.constant = {f}",
            "OWN.items[0] = {f}",
            "OWN.items = [{f}]",
            "OWN.missing = {f}",
            "OWN.__dict__.pop('missing', None)",
            "OWN.inherited = lambda: {f}",
            "OWN.__dict__.pop('inherited', None)",
            "Own.inherited = lambda self: {f}",
            "Own.missing = {f}",
            "Own.__bool__ = lambda self: False",
            "Own.__eq__ = lambda self, other: True",
            "Own.__len__ = lambda self: 0",
            "Base.computed = property(lambda self: {f})",
            "Own.computed = {f}",
            "Base.inherited.__code__ = (lambda self: self.by + 3.0).__code__",
            "OWN.__class__ = Other",
            "OWN.__class__ = Own",
            "Own.__bases__ = (Other,)",
            "SPACE.by = {f}",
            "SPACE.own = Own({f})",
            "OWN = Own({f})",
            "SLOTTED.by = {f}",
            "SLOTTED.more = {f}",
            "Own.__getattr__ = lambda self, name: {f}",
            "Own.__name__ = 'Longer'",
            "BOUND = Own({f}).above",
        ),
    ),
    "values": Feature(
        """
@dataclasses.dataclass
class Data:
    by: float = 2.0
    items: list = dataclasses.field(default_factory=lambda: [NUMBER])
    constant: typing.ClassVar = 2.0
    def __post_init__(self): self.added = self.by
    @functools.cached_property
    def kept(self): return NUMBER
@dataclasses.dataclass(frozen=True)
class Frozen:
    by: float = 2.0
class Pair(typing.NamedTuple):
    items: list
    by: float = 2.0
class Kind(enum.Enum):
    ONE = 1
    TWO = 2
    @property
    def factor(self): return NUMBER + self.value
Kind.ONE.weight = 2.0
DATA, FROZEN_DATA, TUPLE, MEMBER = Data(), Frozen(), Pair([2.0]), Kind.ONE
""",
        (
            "DATA.by",
            "DATA.added",
            "DATA.constant",
            "DATA.kept",
            "DATA.items[0]",
            "Data().items[0]",
            "Data(by=3.0).added",
            "FROZEN_DATA.by",
            "TUPLE.by",
            "TUPLE[0][0]",
            "TUPLE.items[0]",
            "(lambda items, by: items[0] + by)(*TUPLE)",
            "Pair([3.0])._replace(by=4.0).by",
            "Kind.ONE.weight",
            "Kind(1).weight",
            "Kind['ONE'].weight",
            "float(Kind.TWO.value)",
            "MEMBER.factor",
            "(2.0 if MEMBER is Kind.ONE else 3.0)",
            "(2.0 if DATA == Data() else 3.0)",
            "dataclasses.replace(FROZEN_DATA, by=5.0).by",
            "float(len(f'{FROZEN_DATA}'))",
        ),
        (
            "DATA.by = {f}",
            "DATA.added = {f}",
            "DATA.constant = {f}",
            "Data.constant = {f}",
            "DATA.__dict__['kept'] = {f}",
            "DATA.__dict__.pop('kept', None)",
            "DATA.items[0] = {f}",
            "DATA = Data({f})",
            "FROZEN_DATA = Frozen({f})",
            "TUPLE.items[0] = {f}",
            "TUPLE = Pair([{f}], {f})",
            "Kind.ONE.weight = {f}",
            "MEMBER = Kind.TWO",
            "Kind.factor = property(lambda self: {f})",
            "Pair.__new__.__defaults__ = ({f},)",
            "Data.__eq__ = lambda self, other: True",
            "Frozen.__repr__ = lambda self: 'x'",
        ),
    ),
    "functions": Feature(
        """
def made(by):
    def closed(a, more=1.0, *, named=1.0):
        return a * by + more + named
    def set_by(value):
        nonlocal by
        by = value
    return closed, set_by
CLOSED, SET_BY = made(2.0)
def decorated(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs) + wrapper.gain
    wrapper.gain = 1.0
    return wrapper
@decorated
def wrapped(a): return a + NUMBER
@functools.lru_cache
def cached(key): return NUMBER * key
@functools.cache
def table_of(): return {"by": NUMBER}
@functools.lru_cache(maxsize=1)
def one(key): return NUMBER + key
@contextlib.contextmanager
def managed():
    yield NUMBER
def listed(a, items=LIST): return a + items[0]
def generated(items):
    for each in items: yield each + NUMBER
PARTIAL = functools.partial(plus, b=2.0)
OPS = {"f": plus, "g": listed}
""",
        (
            "CLOSED(1.0)",
            "CLOSED(1.0, named=3.0)",
            "wrapped(1.0)",
            "wrapped.gain",
            "cached(2)",
            "table_of()['by']",
            "one(1)",
            "listed(1.0)",
            "PARTIAL(1.0)",
            "PARTIAL.keywords['b']",
            "OPS['f'](1.0)",
            "OPS['g'](2.0, items=[3.0])",
            "plus(*[1.0, 2.0])",
            "plus(**{'a': 1.0, 'b': 2.0})",
            "sum(generated(LIST))",
            "(lambda a: a + NUMBER)(1.0)",
            "functools.reduce(plus, LIST)",
            "sum(map(plus, LIST))",
            "noted(1.0)",
        ),
        (
            "SET_BY({f})",
            "CLOSED.__defaults__ = ({f},)",
            "CLOSED.__kwdefaults__['named'] = {f}",
            "plus = (lambda a, b=1.0: a - b)",
            "plus.__code__ = (lambda a, b=1.0: a * b).__code__",
            "plus.__defaults__ = ({f},)",
            "wrapped.gain = {f}",
            "wrapped.__wrapped__.__code__ = (lambda a: a + 7.0).__code__",
            "cached.cache_clear()",
            "table_of()['by'] = {f}",
            "table_of.cache_clear()",
            "one(5)",
            "PARTIAL.keywords['b'] = {f}",
            "PARTIAL = functools.partial(plus, b={f})",
            "OPS['f'] = listed",
            "OPS['f'] = plus",
            "listed.__defaults__ = ([{f}],)",
            "LIST[0] = {f}",
        ),
    ),
    "modules": Feature(
        """
class Gain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.by = 2.0
        self.weight = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("shift", torch.zeros(4))
        self.act = torch.nn.LeakyReLU(0.5)
    def forward(self, x):
        y = scaled(self.act(x), self.by)
        return y + self.shift if self.training else y
    def factor(self): return self.by
GAIN = Gain()
TENSORS = [torch.ones(3), torch.ones(5)]
""",
        (
            "GAIN.by",
            "GAIN.factor()",
            "(2.0 if GAIN.training else 3.0)",
            "float(GAIN.weight.shape[0])",
            "GAIN.act.negative_slope",
            "float(TENSORS[0].shape[0])",
            "float(WEIGHT.shape[0])",
            "float(len(TENSORS))",
            "float(x.shape[0])",
            "float(GAIN(x).shape[0])",
        ),
        (
            "GAIN.by = {f}",
            "GAIN.train(not GAIN.training)",
            "GAIN.weight = torch.nn.Parameter(torch.ones(6), requires_grad=False)",
            "GAIN.act.negative_slope = {f}",
            "GAIN.shift.add_({f})",
            "GAIN.shift = torch.full((4,), {f})",
            "TENSORS[0].resize_(4)",
            "TENSORS[0] = torch.ones(7)",
            "WEIGHT.resize_(8).fill_({f})",
            "WEIGHT.fill_({f})",
            "WEIGHT = torch.full((8,), {f})",
            "Gain.factor = lambda self: {f}",
            "Gain.__call__ = lambda self, x: scaled(x, {f})",
            "GAIN.act = torch.nn.LeakyReLU({f})",
        ),
    ),
    "surroundings": Feature(
        """
AUX = types.ModuleType(__name__ + "_aux")
AUX.by = 2.0
sys.modules[AUX.__name__] = AUX
LOGGER = logging.getLogger("tzero.tests.hostile")
LOCK = threading.Lock()
LOCAL = threading.local()
LOCAL.by = 2.0
def imported():
    from math import sqrt
    return sqrt(NUMBER * NUMBER)
def logged(a):
    LOGGER.debug("a is %s", a)
    return a + (1.0 if LOGGER.isEnabledFor(logging.DEBUG) else 0.0)
""",
        (
            "AUX.by",
            "getattr(AUX, 'missing', 4.0)",
            "importlib.import_module(AUX.__name__).by",
            "float(os.environ.get('TZERO_HOSTILE', '2'))",
            "float(os.getenv('TZERO_HOSTILE', '3'))",
            "float(torch.finfo(torch.promote_types(x.dtype, torch.get_default_dtype())).bits)",
            "float(torch.finfo().bits)",
            "(2.0 if torch.is_grad_enabled() else 3.0)",
            "float(torch.ones(2).element_size())",
            "float(torch.Size([2, 3]).numel())",
            "(2.0 if torch.device('cpu') == x.device else 3.0)",
            "imported()",
            "logged(2.0)",
            "LOCAL.by",
            "float(x.data_ptr() % 16)",
        ),
        (
            "AUX.by = {f}",
            "AUX.missing = {f}",
            "AUX.__dict__.pop('missing', None)",
            "AUX.__getattr__ = lambda name: {f}",
            "sys.modules[AUX.__name__] = types.SimpleNamespace(by={f})",
            "sys.modules[AUX.__name__] = AUX",
            "os.environ['TZERO_HOSTILE'] = '5'",
            "os.environ.pop('TZERO_HOSTILE', None)",
            "torch.set_default_dtype(torch.float64)",
            "torch.set_default_dtype(torch.float32)",
            "LOGGER.setLevel(logging.CRITICAL)",
            "logging.disable(logging.CRITICAL)",
            "logging.disable(logging.NOTSET)",
            "LOCAL.by = {f}",
            "torch.set_grad_enabled(False)",
            "torch.set_grad_enabled(True)",
        ),
    ),
}

CONDITIONS = (
    "FLAG",
    "MODE == 'fast'",
    "MODE in ('fast', 'slow')",
    "NUMBER > 2.5",
    "COUNT % 2",
    "LIST",
    "not LIST[3:]",
    "TABLE.get('c') is None",
    "len(LIST) > 3 and FLAG",
    "x.shape[0] > 3 or NUMBER",
)

LOOPS = ("LIST", "TABLE['deep']['a']", "[NUMBER, 1.0]", "(float(k) for k in range(COUNT))")

MANAGERS = (
    "torch.no_grad()",
    "torch.set_grad_enabled(FLAG)",
    "contextlib.nullcontext()",
    "threading.Lock()",
)

WRAPPERS = (
    "({} + {})",
    "max({}, {})",
    "plus({}, {})",
    "sum([{}, {}])",
    "(lambda a, b: a + b)({}, {})",
    "({} if FLAG else {})",
    "[{}, {}][COUNT % 2]",
    "float('%.3f' % {}) + {}",
    "{{'p': {}, 'q': {}}}['p']",
    "abs({} - {})",
)
"""How two reads become one."""
