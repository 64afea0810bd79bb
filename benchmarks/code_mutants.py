"""Mutants of a Python function, and rewrites that do the same: what make_code_claims.py makes claims of."""

import ast
import copy
from collections.abc import Callable, Iterator

Change = Callable[[ast.AST], None]
"""Changes one node in place."""

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
    ast.BitAnd: (ast.BitOr,),
}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
    ast.Eq: ast.Eq,
    ast.NotEq: ast.NotEq,
}
_SHORT_NAMES = ["k", "m", "p", "q", "r", "s", "u", "w"]


def mutants(source: str) -> dict[str, str]:
    """Return functions that differ from ``source`` in one place, with the kind of the difference.

    The kinds: operator, bound, index, default, constant, early return, missing case.
    """
    tree = ast.parse(source)
    places = list(ast.walk(tree))
    found: dict[str, str] = {}
    for place, node in enumerate(places):
        for kind, change in _changes(node):
            mutant = copy.deepcopy(tree)
            change(list(ast.walk(mutant))[place])
            text = ast.unparse(ast.fix_missing_locations(mutant))
            if text != source:
                found.setdefault(text, kind)
    return found


def styles(source: str) -> dict[str, str]:
    """Return the function in several styles that do the same, by the name of the style."""
    made = {"plain": source}
    renamed = ast.parse(source)
    _Renamed(renamed).visit(renamed)
    made["short names"] = ast.unparse(renamed)
    mirrored = ast.unparse(ast.fix_missing_locations(_Mirrored().visit(ast.parse(source))))
    made["mirrored comparisons"] = mirrored
    both = ast.fix_missing_locations(_Expanded().visit(ast.parse(mirrored)))
    _Renamed(both).visit(both)
    made["all of these"] = ast.unparse(both)
    kept: dict[str, str] = {}
    for name, text in made.items():
        if text not in kept.values():
            kept[name] = text
    return kept


def _changes(node: ast.AST) -> Iterator[tuple[str, Change]]:
    match node:
        case ast.Compare(ops=[operator]):
            for other in _COMPARISONS.get(type(operator), ()):
                yield "operator", _set("ops", [other()])
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator):
            for sign in _ARITHMETIC.get(type(operator), ()):
                yield "operator", _set("op", sign())
        case ast.BoolOp(op=ast.And()):
            yield "operator", _set("op", ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield "operator", _set("op", ast.And())
        case ast.Call(func=ast.Name(id="range"), args=[*first, stop, last]) if not first:
            yield "bound", _set("args", [_plus(stop, 1), last])
            yield "bound", _set("args", [stop, _plus(last, -1)])
            yield "bound", _set("args", [stop, _plus(last, 1)])
        case ast.Call(func=ast.Name(id="range"), args=[stop]):
            yield "bound", _set("args", [_plus(stop, -1)])
            yield "bound", _set("args", [ast.Constant(1), stop])
        case ast.Slice(lower=lower, upper=upper):
            for field, end in (("lower", lower), ("upper", upper)):
                if end is not None:
                    yield "bound", _set(field, _plus(end, 1))
        case ast.Subscript(slice=(ast.Constant(value=int()) | ast.Name() | ast.BinOp()) as index):
            yield "index", _set("slice", _plus(index, 1))
            yield "index", _set("slice", _plus(index, -1))
        case ast.arguments(defaults=[*defaults]):
            for number, default in enumerate(defaults):
                if isinstance(default, ast.Constant):
                    changed = [*defaults[:number], _other(default), *defaults[number + 1 :]]
                    yield "default", _set("defaults", changed)
        case ast.Return(value=ast.Constant() as constant) | ast.Assign(value=ast.Constant() as constant):
            if isinstance(constant.value, int):
                yield "constant", _set("value", _other(constant))
        case ast.FunctionDef(body=body):
            yield from _changes_of_body(body)


def _changes_of_body(body: list[ast.stmt]) -> Iterator[tuple[str, Change]]:
    for number, statement in enumerate(body):
        if isinstance(statement, ast.If) and not statement.orelse and len(body) > 1:
            yield "missing case", _without(number)
        if isinstance(statement, ast.For | ast.While) and isinstance(body[-1], ast.Return):
            yield "early return", _return_in(number)


def _without(number: int) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.FunctionDef)
        del node.body[number]

    return change


def _return_in(number: int) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.FunctionDef)
        loop = node.body[number]
        assert isinstance(loop, ast.For | ast.While)
        loop.body.append(copy.deepcopy(node.body[-1]))

    return change


def _set(field: str, value: object) -> Change:
    def change(node: ast.AST) -> None:
        setattr(node, field, copy.deepcopy(value))

    return change


def _plus(node: ast.expr, number: int) -> ast.expr:
    """Return ``node + number``, computed where it is a number."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return ast.Constant(node.value + number)
    sign: ast.operator = ast.Add() if number > 0 else ast.Sub()
    return ast.BinOp(node, sign, ast.Constant(abs(number)))


def _other(constant: ast.Constant) -> ast.Constant:
    value = constant.value
    if isinstance(value, bool):
        return ast.Constant(not value)
    return ast.Constant(value + 1) if isinstance(value, int) else ast.Constant("")


class _Mirrored(ast.NodeTransformer):
    """Writes ``b > a`` for ``a < b``."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) != 1 or type(node.ops[0]) not in _MIRRORED:
            return node
        return ast.Compare(node.comparators[0], [_MIRRORED[type(node.ops[0])]()], [node.left])


class _Expanded(ast.NodeTransformer):
    """Writes ``a = a + b`` for ``a += b``."""

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name):
            return node
        return ast.Assign([node.target], ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value))


class _Renamed(ast.NodeTransformer):
    """Gives short names to a function's variables, except for its parameters."""

    def __init__(self, tree: ast.AST) -> None:
        nodes = list(ast.walk(tree))
        parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
        stored = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
        variables = dict.fromkeys(node.id for node in stored if node.id not in parameters)
        free = [name for name in _SHORT_NAMES if name not in parameters]
        self.names = dict(zip(variables, free, strict=False))

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node
