"""A Griffe extension: the API pages show `Annotated[T, ...]` as `T`, without its validators."""

from typing import Any

import griffe


def _plain(annotation: Any) -> Any:
    """The annotation with the first argument in place of each `Annotated[...]`."""
    if isinstance(annotation, griffe.ExprSubscript):
        if annotation.canonical_name == "Annotated":
            inside = annotation.slice
            return _plain(inside.elements[0] if isinstance(inside, griffe.ExprTuple) else inside)
        annotation.slice = _plain(annotation.slice)
    elif isinstance(annotation, griffe.ExprBinOp):
        annotation.left, annotation.right = _plain(annotation.left), _plain(annotation.right)
    elif isinstance(annotation, griffe.ExprTuple):
        annotation.elements = [_plain(each) for each in annotation.elements]
    return annotation


class PlainAnnotations(griffe.Extension):
    """Changes the annotations of attributes, parameters and results."""

    def on_attribute(self, *, attr: griffe.Attribute, **options: Any) -> None:
        """Of a field."""
        attr.annotation = _plain(attr.annotation)

    def on_function(self, *, func: griffe.Function, **options: Any) -> None:
        """Of a function."""
        func.returns = _plain(func.returns)
        for parameter in func.parameters:
            parameter.annotation = _plain(parameter.annotation)
