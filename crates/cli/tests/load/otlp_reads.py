"""Prints what OpenTelemetry's own classes find in the bodies of requests, the files of a directory, as JSON."""
import json
import pathlib
import sys

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

NO_VALUE = 1


def described(metric):
    kind = metric.WhichOneof("data")
    data = getattr(metric, kind)
    found = {"unit": metric.unit, "kind": kind}
    if kind == "sum":
        found["kind"] = f"sum {data.aggregation_temporality} {data.is_monotonic}"
    points = [point for point in data.data_points if not point.flags & NO_VALUE]
    if data.data_points:
        found["attributes"] = {pair.key: pair.value.string_value for pair in data.data_points[0].attributes}
    if not points:
        found["total"] = None
    elif kind == "histogram":
        point = points[0]
        found |= {"count": float(point.count), "sum": point.sum, "in_buckets": float(sum(point.bucket_counts))}
        found |= {"buckets": len(point.bucket_counts), "limits": len(point.explicit_bounds)}
    else:
        found["total"] = sum(point.as_double for point in points)
    return found


result = {}
for file in pathlib.Path(sys.argv[1]).iterdir():
    request = ExportMetricsServiceRequest.FromString(file.read_bytes())
    (of_process,) = request.resource_metrics
    (scope,) = of_process.scope_metrics
    result[file.name] = {metric.name: described(metric) for metric in scope.metrics}
    result["resource"] = {pair.key: pair.value.string_value for pair in of_process.resource.attributes}
print(json.dumps(result))
