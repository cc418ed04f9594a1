//! The bytes of an OTLP request with metrics: an `ExportMetricsServiceRequest` in Protobuf.
//!
//! It is made of the samples for Prometheus. A name loses its unit and `_total`, which receivers that write into
//! Prometheus add again: `headway_load_response_seconds` is `headway.load.response` in `s`. Counters and the
//! histogram are cumulative, as k6 and the SDKs send them.
//!
//! Sources: `metrics.proto`, `resource.proto` and `common.proto` of OTLP 1.x; the OpenTelemetry specification on
//! compatibility with Prometheus.

use super::metrics::{FAMILIES, Family, STALE, Sample};
use super::protobuf::{bytes, double, fixed, number, packed};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u64 = 2;
/// The flag of a point without a value (`DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK`).
const NO_VALUE: u64 = 1;

/// Labels of the run that describe its process, and their names in OpenTelemetry. The others belong to each point.
const RESOURCE: [(&str, &str); 2] = [("job", "service.name"), ("instance", "service.instance.id")];

/// The body of a request. Counters began at `start_ns`, since 1970.
pub(super) fn body(
    samples: &[Sample],
    common: &[(&'static str, String)],
    start_ns: u64,
) -> Vec<u8> {
    let (of_resource, of_points): (Vec<_>, Vec<_>) = common
        .iter()
        .partition(|(name, _)| RESOURCE.iter().any(|(label, _)| label == name));
    let mut resource = Vec::new();
    for (label, value) in of_resource {
        let named = RESOURCE.iter().filter(|(name, _)| name == label);
        for (_, name) in named {
            attribute(&mut resource, 1, name, value);
        }
    }
    attribute(
        &mut resource,
        1,
        "service.version",
        env!("CARGO_PKG_VERSION"),
    );
    let mut scope = Vec::new();
    bytes(&mut scope, 1, b"headway");
    bytes(&mut scope, 2, env!("CARGO_PKG_VERSION").as_bytes());
    let mut in_scope = Vec::new();
    bytes(&mut in_scope, 1, &scope);
    let points = Points {
        common: of_points,
        start_ns,
    };
    for family in FAMILIES {
        if let Some(metric) = points.metric(family, samples) {
            bytes(&mut in_scope, 2, &metric);
        }
    }
    let mut of_process = Vec::new();
    bytes(&mut of_process, 1, &resource);
    bytes(&mut of_process, 2, &in_scope);
    let mut request = Vec::new();
    bytes(&mut request, 1, &of_process);
    request
}

/// A name without its unit, and the unit in UCUM.
fn name_and_unit(family: &Family) -> (String, &'static str) {
    let stem = family.name.strip_suffix("_total").unwrap_or(family.name);
    let (stem, unit) = match (stem.strip_suffix("_seconds"), stem.strip_suffix("_bytes")) {
        (Some(stem), _) => (stem, "s"),
        (_, Some(stem)) => (stem, "By"),
        _ => (stem, ""),
    };
    (stem.replacen("headway_load_", "headway.load.", 1), unit)
}

/// What all points have.
struct Points<'a> {
    common: Vec<&'a (&'static str, String)>,
    start_ns: u64,
}

impl Points<'_> {
    /// A `Metric`. `None` if there are no samples of it.
    fn metric(&self, family: &Family, samples: &[Sample]) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        let of_family = || samples.iter().filter(|sample| sample.name == family.name);
        let field = match family.kind {
            "histogram" => {
                bytes(&mut data, 1, &self.histogram(family, samples)?);
                number(&mut data, 2, CUMULATIVE);
                9
            }
            kind => {
                of_family().next()?;
                for sample in of_family() {
                    bytes(&mut data, 1, &self.point(sample, kind == "counter"));
                }
                if kind == "counter" {
                    number(&mut data, 2, CUMULATIVE);
                    number(&mut data, 3, 1); // is_monotonic
                    7
                } else {
                    5
                }
            }
        };
        let (name, unit) = name_and_unit(family);
        let mut metric = Vec::new();
        bytes(&mut metric, 1, name.as_bytes());
        bytes(&mut metric, 2, family.help.as_bytes());
        bytes(&mut metric, 3, unit.as_bytes());
        bytes(&mut metric, field, &data);
        Some(metric)
    }

    /// A `NumberDataPoint`.
    fn point(&self, sample: &Sample, is_sum: bool) -> Vec<u8> {
        let mut point = Vec::new();
        if is_sum {
            fixed(&mut point, 2, self.start_ns);
        }
        fixed(&mut point, 3, nanoseconds(sample));
        match is_stale(sample) {
            true => number(&mut point, 8, NO_VALUE),
            false => double(&mut point, 4, sample.value),
        }
        self.attributes(&mut point, 7, sample);
        point
    }

    /// A `HistogramDataPoint`. Samples of buckets are sums from 0 up; here each has its own count.
    fn histogram(&self, family: &Family, samples: &[Sample]) -> Option<Vec<u8>> {
        let of = |suffix: &str| {
            let name = format!("{}{suffix}", family.name);
            samples.iter().filter(move |sample| sample.name == name)
        };
        let (count, sum) = (of("_count").next()?, of("_sum").next()?);
        let mut point = Vec::new();
        fixed(&mut point, 2, self.start_ns);
        fixed(&mut point, 3, nanoseconds(count));
        if is_stale(count) {
            number(&mut point, 10, NO_VALUE);
        } else {
            fixed(&mut point, 4, count.value as u64);
            double(&mut point, 5, sum.value);
            let mut below = 0.0;
            let counts = of("_bucket").map(|bucket| {
                let own = bucket.value - below;
                below = bucket.value;
                own as u64
            });
            packed(&mut point, 6, counts);
            let limit = |bucket: &Sample| bucket.labels.first()?.1.parse::<f64>().ok();
            let limits = of("_bucket").filter_map(limit);
            packed(
                &mut point,
                7,
                limits.filter(|one| one.is_finite()).map(f64::to_bits),
            );
        }
        self.attributes(&mut point, 9, count);
        Some(point)
    }

    fn attributes(&self, point: &mut Vec<u8>, field: u64, sample: &Sample) {
        let common = self.common.iter().map(|(name, value)| (*name, value));
        let own = sample.labels.iter().map(|(name, value)| (*name, value));
        own.chain(common)
            .for_each(|(name, value)| attribute(point, field, name, value));
    }
}

fn nanoseconds(sample: &Sample) -> u64 {
    u64::try_from(sample.at_ms).unwrap_or(0) * 1_000_000
}

fn is_stale(sample: &Sample) -> bool {
    sample.value.to_bits() == STALE.to_bits()
}

/// A `KeyValue` with a text.
fn attribute(out: &mut Vec<u8>, field: u64, name: &str, value: &str) {
    let (mut any, mut pair) = (Vec::new(), Vec::new());
    bytes(&mut any, 1, value.as_bytes());
    bytes(&mut pair, 1, name.as_bytes());
    bytes(&mut pair, 2, &any);
    bytes(out, field, &pair);
}

/// How many points a receiver has refused, and why (`ExportMetricsPartialSuccess`).
pub(super) fn rejected(body: &[u8]) -> Option<(u64, String)> {
    let partial = fields(body).find_map(|field| match field {
        Field::Bytes(1, partial) => Some(partial),
        _ => None,
    })?;
    let (mut points, mut why) = (0, String::new());
    for field in fields(partial) {
        match field {
            Field::Number(1, value) => points = value,
            Field::Bytes(2, text) => why = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    (points > 0).then_some((points, why))
}

/// A field of a message, with its number.
#[derive(Debug, PartialEq)]
enum Field<'a> {
    Number(u64, u64),
    Bytes(u64, &'a [u8]),
}

/// The fields of a message, up to the first one that cannot be read.
fn fields(mut rest: &[u8]) -> impl Iterator<Item = Field<'_>> {
    std::iter::from_fn(move || {
        let tag = take_varint(&mut rest)?;
        let number = tag >> 3;
        match tag & 7 {
            0 => Some(Field::Number(number, take_varint(&mut rest)?)),
            1 => {
                let value = rest.split_off(..8)?;
                let value = u64::from_le_bytes(value.try_into().ok()?);
                Some(Field::Number(number, value))
            }
            2 => {
                let length = usize::try_from(take_varint(&mut rest)?).ok()?;
                Some(Field::Bytes(number, rest.split_off(..length)?))
            }
            _ => None,
        }
    })
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, label: Option<(&'static str, &str)>, value: f64) -> Sample {
        let labels = label.map(|(name, value)| (name, value.to_owned()));
        Sample {
            name: name.to_owned(),
            labels: labels.into_iter().collect(),
            value,
            at_ms: 7_000,
        }
    }

    fn bucket(limit: &str, value: f64) -> Sample {
        let name = "headway_load_response_seconds_bucket";
        sample(name, Some(("le", limit)), value)
    }

    /// The bytes of the field with this number; empty if there is none.
    fn part(message: &[u8], wanted: u64) -> &[u8] {
        let mut all = fields(message).filter_map(|field| match field {
            Field::Bytes(number, value) if number == wanted => Some(value),
            _ => None,
        });
        all.next().unwrap_or_default()
    }

    fn all(message: &[u8], wanted: u64) -> Vec<&[u8]> {
        let parts = fields(message).filter_map(|field| match field {
            Field::Bytes(number, value) if number == wanted => Some(value),
            _ => None,
        });
        parts.collect()
    }

    fn value(message: &[u8], wanted: u64) -> Option<u64> {
        fields(message).find_map(|field| match field {
            Field::Number(number, value) if number == wanted => Some(value),
            _ => None,
        })
    }

    /// The metrics by name, each with its kind of data and its data.
    fn metrics(request: &[u8]) -> Vec<(&str, u64, &[u8])> {
        let in_scope = part(part(request, 1), 2);
        let metric = |metric| {
            let name = std::str::from_utf8(part(metric, 1)).unwrap();
            let kind = [5, 7, 9]
                .into_iter()
                .find(|kind| !part(metric, *kind).is_empty());
            let kind = kind.expect("data");
            (name, kind, part(metric, kind))
        };
        all(in_scope, 2).into_iter().map(metric).collect()
    }

    fn texts(message: &[u8], field: u64) -> Vec<(&str, &str)> {
        let text = |bytes| std::str::from_utf8(bytes).unwrap();
        let pair = |pair| (text(part(pair, 1)), text(part(part(pair, 2), 1)));
        all(message, field).into_iter().map(pair).collect()
    }

    #[test]
    fn counters_gauges_and_the_histogram_have_their_kinds_and_points() {
        let requests = "headway_load_requests_total";
        let samples = [
            sample(requests, Some(("outcome", "ok")), 8.0),
            sample(requests, Some(("outcome", "status")), 1.0),
            sample("headway_load_connections", None, 4.0),
            bucket("0.001", 3.0),
            bucket("0.002", 8.0),
            bucket("+Inf", 9.0),
            sample("headway_load_response_seconds_count", None, 9.0),
            sample("headway_load_response_seconds_sum", None, 0.5),
        ];
        let common = [("job", "headway-load"), ("instance", "a"), ("run", "b")];
        let common = common.map(|(name, value)| (name, value.to_owned()));
        let request = body(&samples, &common, 5);
        let resource = texts(part(part(&request, 1), 1), 1);
        assert_eq!(
            resource[..2],
            [
                ("service.name", "headway-load"),
                ("service.instance.id", "a")
            ]
        );
        let found = metrics(&request);
        let names: Vec<(&str, u64)> = found.iter().map(|one| (one.0, one.1)).collect();
        let expected = [
            ("headway.load.requests", 7),
            ("headway.load.response", 9),
            ("headway.load.connections", 5),
        ];
        assert_eq!(names, expected);
        let sum = found[0].2;
        assert_eq!((value(sum, 2), value(sum, 3)), (Some(CUMULATIVE), Some(1)));
        let points = all(sum, 1);
        assert_eq!(texts(points[0], 7), [("outcome", "ok"), ("run", "b")]);
        let shown = [2, 3, 4].map(|field| value(points[0], field));
        assert_eq!(shown, [5, 7_000_000_000, 8_f64.to_bits()].map(Some));
        assert_eq!(value(points[1], 4), Some(1_f64.to_bits()));
        let histogram = all(found[1].2, 1)[0];
        let numbers = |bytes: &[u8]| -> Vec<u64> {
            let eight = bytes
                .chunks(8)
                .map(|eight| u64::from_le_bytes(eight.try_into().unwrap()));
            eight.collect()
        };
        assert_eq!(
            numbers(part(histogram, 6)),
            [3, 5, 1],
            "each bucket has its own count"
        );
        assert_eq!(
            numbers(part(histogram, 7)),
            [0.001_f64, 0.002].map(f64::to_bits)
        );
        assert_eq!(
            (value(histogram, 4), value(histogram, 5)),
            (Some(9), Some(0.5_f64.to_bits()))
        );
        let gauge = all(found[2].2, 1)[0];
        assert_eq!(
            (value(gauge, 2), value(gauge, 4)),
            (None, Some(4_f64.to_bits()))
        );
    }

    #[test]
    fn points_after_the_end_have_a_flag_and_no_value() {
        let samples = [
            sample("headway_load_connections", None, STALE),
            sample("headway_load_response_seconds_count", None, STALE),
            sample("headway_load_response_seconds_sum", None, STALE),
        ];
        let request = body(&samples, &[], 5);
        let found = metrics(&request);
        let (histogram, gauge) = (all(found[0].2, 1)[0], all(found[1].2, 1)[0]);
        assert_eq!((value(gauge, 8), value(gauge, 4)), (Some(1), None));
        assert_eq!((value(histogram, 10), value(histogram, 4)), (Some(1), None));
        assert!(part(histogram, 6).is_empty());
    }

    #[test]
    fn every_family_has_a_name_that_gives_the_one_of_prometheus() {
        for family in FAMILIES {
            let (name, unit) = name_and_unit(family);
            let unit = match unit {
                "s" => "_seconds",
                "By" => "_bytes",
                _ => "",
            };
            let total = if family.kind == "counter" {
                "_total"
            } else {
                ""
            };
            let again = format!("{}{unit}{total}", name.replace('.', "_"));
            assert_eq!(again, family.name);
        }
    }

    #[test]
    fn rejected_points_are_read_from_a_partial_success() {
        let partial = [b"\x0a\x07\x08\x90\x03\x12\x02no".as_slice(), b"\x7f"].concat();
        assert_eq!(rejected(&partial), Some((400, "no".to_owned())));
        for answer in [
            b"".as_slice(),
            b"\x0a\x00",
            b"\x0a\x04\x12\x02ok",
            b"\x0a\x09\x08",
            b"{}",
        ] {
            assert_eq!(rejected(answer), None, "{answer:?}");
        }
    }
}
