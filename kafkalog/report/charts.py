"""altair's charts, shown in a notebook without a network.

altair's default renderer shows a chart by scripts from other hosts.  These charts give a notebook their specification,
for its own Vega, and a picture that vl-convert has drawn.  A renderer that the user has chosen is used as it is.  Knows
nothing of logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair
import vl_convert

# nbformat takes no JSON of the type that altair 6 has, "application/vnd.vegalite.v6.json".
SPEC_TYPE = f"application/vnd.vegalite.{altair.SCHEMA_VERSION.partition('.')[0]}+json"
SVG_BYTES_MAX = 1 << 20  # a larger picture is a PNG: a notebook file keeps it


class _Offline:
    """How a chart is shown."""

    def _repr_mimebundle_(self, *given: Any, **options: Any) -> Any:
        chart: Any = super()
        if altair.renderers.active != "default":
            return chart._repr_mimebundle_(*given, **options)
        spec = chart.to_dict()
        svg = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
        shown = {SPEC_TYPE: spec, "text/plain": f"<{type(self).__name__} of kafkalog>"}
        if len(svg) <= SVG_BYTES_MAX:
            return {**shown, "image/svg+xml": svg}
        return {**shown, "image/png": vl_convert.svg_to_png(svg)}


class Chart(_Offline, altair.Chart):
    """A picture without layers."""


class LayerChart(_Offline, altair.LayerChart):
    """A picture with layers."""


class VConcatChart(_Offline, altair.VConcatChart):
    """Pictures one below the other."""


def chart_of(spec: Mapping[str, Any]) -> Any:
    """Returns a Vega-Lite specification as a chart.

    `altair.Chart.from_dict` checks every part against the schema of each kind of chart, which takes half a second.  A
    chart is checked once, when it is shown.
    """
    parts: dict[str, Any] = {key: [chart_of(each) for each in spec[key]] for key in ("vconcat", "layer") if key in spec}
    kind: Any = VConcatChart if "vconcat" in parts else LayerChart if parts else Chart
    if not parts and "encoding" in spec:
        parts["encoding"] = altair.FacetedEncoding(**spec["encoding"])
    return kind(**{**spec, **parts})
