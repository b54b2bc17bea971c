use http::HeaderName;
use proptest::prelude::*;

use super::*;

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    lines.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())).collect()
}

const SENT: (&str, &str) = ("date", "Fri, 15 Jan 2027 08:00:00 GMT");

fn locked(status: u16, preset: HeaderPreset, lines: &[(&'static str, &str)]) -> Option<Throttle> {
    let lines = [&[SENT], lines].concat();
    read_throttle(StatusCode::from_u16(status).unwrap(), &headers(&lines), &[preset])
}

fn wait(seconds: u64) -> Throttle {
    Throttle::retry_after(Duration::from_secs(seconds)).and(Throttle::remaining(0))
}

#[test]
fn a_refusal_says_for_how_long_in_seconds_or_by_a_date() {
    let none = Throttle::remaining(0);
    for (status, value, expected) in [
        (429, "120", Some(wait(120))),
        (429, " 0 ", Some(wait(0))),
        (429, "1.5", Some(Throttle::retry_after(Duration::from_millis(1500)).and(none))),
        (429, "Fri, 15 Jan 2027 08:00:30 GMT", Some(wait(30))),
        (429, "Fri, 15 Jan 2027 07:59:00 GMT", Some(wait(0))),
        (429, "Friday, 15-Jan-27 08:00:30 GMT", Some(wait(30))),
        (429, "99999999999999999999999", Some(Throttle::retry_after(Duration::MAX).and(none))),
        (429, "-1", Some(none)),
        (429, "soon", Some(none)),
        (429, "", Some(none)),
        (503, "120", Some(wait(120))),
        (503, "soon", None),
        (529, "120", Some(wait(120))),
        (529, "soon", None),
        (200, "120", None),
        (301, "120", None),
    ] {
        assert_eq!(locked(status, HeaderPreset::RateLimit, &[("retry-after", value)]), expected, "{status} {value:?}");
    }
    assert_eq!(locked(429, HeaderPreset::RateLimit, &[]), Some(none));
    assert_eq!(locked(503, HeaderPreset::RateLimit, &[]), None);
    let both = [("retry-after", "2"), ("retry-after-ms", "1250")];
    assert_eq!(
        locked(429, HeaderPreset::RateLimit, &both),
        Some(Throttle::retry_after(Duration::from_millis(1250)).and(none))
    );
}

type Row<'a> = (HeaderPreset, &'a [(&'static str, &'a str)], Option<Throttle>);

#[test]
fn preset_reads_its_senders_headers() {
    use HeaderPreset::{
        AnthropicInputTokens, AnthropicOutputTokens, AnthropicRequests, AnthropicTokens, OpenAiRequests, OpenAiTokens,
        RateLimit, XRateLimit,
    };

    let left = |tokens| Some(Throttle::remaining(tokens));
    let table: &[Row] = &[
        // Structured fields, of the current draft.
        (RateLimit, &[("ratelimit", r#""default";r=50;t=30"#)], left(50)),
        (RateLimit, &[("ratelimit", r#""default";r=0;t=30"#)], Some(wait(30))),
        (RateLimit, &[("ratelimit", r#""hour";r=900;t=100, "minute";r=3;t=20"#)], left(3)),
        (RateLimit, &[("ratelimit", r#""a";r=7"#), ("ratelimit", r#""b";r=5"#)], left(5)),
        (RateLimit, &[("ratelimit", r#""default";r=5;t"#)], left(5)),
        (RateLimit, &[("ratelimit", r#""default";t=30"#)], None),
        (RateLimit, &[("ratelimit", r#""default";r=-1"#)], None),
        (RateLimit, &[("ratelimit", r#""default";r=1.5"#)], None),
        (RateLimit, &[("ratelimit", r#""default"#)], None),
        // A dictionary, of an older one, and headers of their own, of the first.
        (RateLimit, &[("ratelimit", "limit=100, remaining=50, reset=5")], left(50)),
        (RateLimit, &[("ratelimit", "limit=100, remaining=0, reset=5")], Some(wait(5))),
        (RateLimit, &[("ratelimit-remaining", "9"), ("ratelimit-reset", "5")], left(9)),
        (RateLimit, &[("ratelimit-remaining", "0"), ("ratelimit-reset", "5")], Some(wait(5))),
        (RateLimit, &[("ratelimit-remaining", "0")], left(0)),
        // GitLab: the second when the window ends.
        (RateLimit, &[("ratelimit-remaining", "0"), ("ratelimit-reset", "1800000030")], Some(wait(30))),
        (RateLimit, &[("ratelimit-reset", "5")], None),
        // GitHub: the second when the window ends; others: seconds from now; milliseconds since 1970.
        (XRateLimit, &[("x-ratelimit-remaining", "4999"), ("x-ratelimit-reset", "1800000030")], left(4999)),
        (XRateLimit, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000030")], Some(wait(30))),
        (XRateLimit, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1799999999")], Some(wait(0))),
        (XRateLimit, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000030000")], Some(wait(30))),
        (XRateLimit, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")], Some(wait(30))),
        (XRateLimit, &[("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", "30")], Some(wait(30))),
        (XRateLimit, &[("x-ratelimit-remaining", "598.0")], left(598)),
        (XRateLimit, &[("x-ratelimit-remaining", "many")], None),
        // Buckets that refill evenly: the reset is when they are full, so one of 60 in 90 s has a token after 1.5 s.
        (OpenAiRequests, &[("x-ratelimit-remaining-requests", "59")], left(59)),
        (
            OpenAiRequests,
            &[
                ("x-ratelimit-limit-requests", "60"),
                ("x-ratelimit-remaining-requests", "0"),
                ("x-ratelimit-reset-requests", "1m30s"),
            ],
            Some(Throttle::retry_after(Duration::from_millis(1500)).and(Throttle::remaining(0))),
        ),
        (
            OpenAiTokens,
            &[("x-ratelimit-remaining-tokens", "149984"), ("x-ratelimit-reset-tokens", "6ms")],
            left(149_984),
        ),
        (OpenAiTokens, &[("x-ratelimit-remaining-requests", "59")], None),
        (
            AnthropicRequests,
            &[
                ("anthropic-ratelimit-requests-limit", "50"),
                ("anthropic-ratelimit-requests-remaining", "0"),
                ("anthropic-ratelimit-requests-reset", "2027-01-15T08:01:00Z"),
            ],
            Some(Throttle::retry_after(Duration::from_millis(1200)).and(Throttle::remaining(0))),
        ),
        (
            AnthropicTokens,
            &[
                ("anthropic-ratelimit-tokens-remaining", "12000"),
                ("anthropic-ratelimit-tokens-reset", "2027-01-15T08:01:00Z"),
            ],
            left(12_000),
        ),
        (
            AnthropicInputTokens,
            &[
                ("anthropic-ratelimit-input-tokens-limit", "40000"),
                ("anthropic-ratelimit-input-tokens-remaining", "0"),
                ("anthropic-ratelimit-input-tokens-reset", "2027-01-15T08:01:00Z"),
            ],
            Some(Throttle::retry_after(Duration::from_micros(1500)).and(Throttle::remaining(0))),
        ),
        (AnthropicInputTokens, &[("anthropic-ratelimit-tokens-remaining", "7")], None),
        (
            AnthropicOutputTokens,
            &[
                ("anthropic-ratelimit-input-tokens-remaining", "39000"),
                ("anthropic-ratelimit-output-tokens-remaining", "8000"),
                ("anthropic-ratelimit-output-tokens-reset", "2027-01-15T08:00:01Z"),
            ],
            left(8000),
        ),
        (
            AnthropicRequests,
            &[
                ("anthropic-ratelimit-requests-limit", "0"),
                ("anthropic-ratelimit-requests-remaining", "0"),
                ("anthropic-ratelimit-requests-reset", "tomorrow"),
            ],
            left(0),
        ),
    ];
    for (preset, lines, expected) in table {
        assert_eq!(locked(200, *preset, lines), *expected, "{preset:?} of {lines:?}");
    }
    for preset in HeaderPreset::ALL {
        assert!(table.iter().any(|(of, _, read)| of == preset && read.is_some()), "{preset:?} is not in the table");
    }
}

#[test]
fn value_can_have_parameters() {
    let read = |lines: &[_]| locked(200, HeaderPreset::RateLimit, lines);
    assert_eq!(read(&[("ratelimit-remaining", "76;w=21600")]), Some(Throttle::remaining(76)));
    let both = [("ratelimit-remaining", "0 ;w=21600"), ("ratelimit-reset", "30;w=21600")];
    assert_eq!(read(&both), Some(wait(30)));
    assert_eq!(read(&[("ratelimit-remaining", ";w=21600")]), None);
}

#[test]
fn policy_is_selected_by_name() {
    let left = |tokens| Some(Throttle::remaining(tokens));
    for (name, line, expected) in [
        ("minute", r#""hour";r=900;t=100, "minute";r=3;t=20"#, left(3)),
        ("hour", r#""hour";r=900;t=100, "minute";r=3;t=20"#, left(900)),
        ("a", r#""a";r=7;pk=:AA==:, "a";r=5;pk=:AQ==:, b;r=1"#, left(5)),
        ("b", r#""a";r=7, b;r=0;t=9"#, Some(wait(9))),
        ("day", r#""hour";r=900;t=100"#, None),
        ("remaining", "limit=100, remaining=50, reset=5", None),
    ] {
        assert_eq!(locked(200, HeaderPreset::Policy(name), &[("ratelimit", line)]), expected, "{name} of {line}");
    }
}

#[test]
fn oversized_field_is_ignored() {
    for (status, name, value, read, absent) in [
        (200, "ratelimit", r#""a";r=7"#, Some(Throttle::remaining(7)), None),
        (200, "ratelimit-remaining", "7", Some(Throttle::remaining(7)), None),
        (429, "retry-after", "7", Some(wait(7)), Some(Throttle::remaining(0))),
    ] {
        for (length, expected) in
            [(MAX_FIELD_BYTES, read), (MAX_FIELD_BYTES + 1, absent), (7 * MAX_FIELD_BYTES, absent)]
        {
            let line = format!("{value:>length$}");
            assert_eq!(locked(status, HeaderPreset::RateLimit, &[(name, &line)]), expected, "{name} of {length} bytes");
        }
    }
    let half = format!("{:>1$}", r#""a";r=7"#, MAX_FIELD_BYTES / 2);
    let lines = [("ratelimit", &*half); 3];
    assert_eq!(locked(200, HeaderPreset::RateLimit, &lines[..2]), Some(Throttle::remaining(7)));
    assert_eq!(locked(200, HeaderPreset::RateLimit, &lines), None, "all of its lines are one field");
}

#[test]
fn strictest_line_of_a_header_counts() {
    let lines = |[least, other]: [&'static str; 2], [soon, late]: [&'static str; 2]| {
        [
            ("x-ratelimit-remaining", other),
            ("x-ratelimit-remaining", least),
            ("x-ratelimit-reset", late),
            ("x-ratelimit-reset", soon),
        ]
    };
    assert_eq!(locked(200, HeaderPreset::XRateLimit, &lines(["3", "100"], ["5", "60"])), Some(Throttle::remaining(3)));
    assert_eq!(locked(200, HeaderPreset::XRateLimit, &lines(["0", "100"], ["5", "60"])), Some(wait(60)));
    assert_eq!(locked(200, HeaderPreset::XRateLimit, &lines(["0", "many"], ["60", "soon"])), Some(wait(60)));
    let of_requests = [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-limit-requests", "10"),
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-reset-requests", "1m30s"),
    ];
    assert_eq!(locked(200, HeaderPreset::OpenAiRequests, &of_requests), Some(wait(9)));
    for (first, second) in [("5", "60"), ("60", "5"), ("soon", "60"), ("5", "Fri, 15 Jan 2027 08:01:00 GMT")] {
        let lines = [("retry-after", first), ("retry-after", second)];
        assert_eq!(locked(429, HeaderPreset::XRateLimit, &lines), Some(wait(60)), "{first} and {second}");
    }
    let lines = [("retry-after-ms", "1000"), ("retry-after-ms", "9000")];
    assert_eq!(locked(429, HeaderPreset::XRateLimit, &lines), Some(wait(9)));
}

#[test]
fn refusal_leaves_no_tokens_despite_other_headers() {
    let lines = [("x-ratelimit-remaining-tokens", "5000")];
    assert_eq!(locked(429, HeaderPreset::OpenAiTokens, &lines), Some(Throttle::remaining(0)));
    let lines = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30")];
    assert_eq!(locked(429, HeaderPreset::XRateLimit, &lines), Some(wait(30)));
}

#[test]
fn refusal_without_retry_after_uses_standard_headers() {
    let unread = HeaderPreset::OpenAiTokens;
    let standard = ("ratelimit", r#""hour";r=900;t=3000, "minute";r=0;t=30"#);
    assert_eq!(locked(429, unread, &[standard]), Some(wait(30)));
    assert_eq!(locked(429, unread, &[("ratelimit-remaining", "0"), ("ratelimit-reset", "30")]), Some(wait(30)));
    assert_eq!(locked(429, unread, &[("ratelimit-remaining", "0"), ("ratelimit-reset", "1800000030")]), Some(wait(30)));
    assert_eq!(locked(429, unread, &[standard, ("retry-after", "5")]), Some(wait(5)));
    assert_eq!(locked(429, HeaderPreset::RateLimit, &[standard, ("retry-after", "soon")]), Some(wait(30)));
    assert_eq!(locked(429, unread, &[("ratelimit", r#""a";r=7;t=30"#)]), Some(Throttle::remaining(0)));
    assert_eq!(locked(200, unread, &[standard]), None);
    assert_eq!(
        locked(429, HeaderPreset::Policy("hour"), &[standard]),
        Some(Throttle::remaining(0)),
        "another one's wait"
    );
    assert_eq!(locked(429, HeaderPreset::Policy("minute"), &[standard]), Some(wait(30)));
}

#[test]
fn retry_after_overrides_only_the_ratelimit_window() {
    let (policies, soon) = (("ratelimit", r#""hour";r=9;t=3000, "minute";r=0;t=30"#), ("retry-after", "5"));
    let of_names = [("ratelimit-remaining", "0"), ("ratelimit-reset", "30"), soon];
    for status in [200, 429] {
        assert_eq!(locked(status, HeaderPreset::RateLimit, &[policies, soon]), Some(wait(5)), "{status}");
        assert_eq!(locked(status, HeaderPreset::Policy("minute"), &[policies, soon]), Some(wait(5)), "{status}");
        assert_eq!(locked(status, HeaderPreset::RateLimit, &of_names), Some(wait(5)), "{status}");
        let others = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30"), soon];
        assert_eq!(locked(status, HeaderPreset::XRateLimit, &others), Some(wait(30)), "{status}");
    }
    assert_eq!(locked(200, HeaderPreset::Policy("hour"), &[policies, soon]), Some(Throttle::remaining(9)));
    assert_eq!(locked(200, HeaderPreset::RateLimit, &[policies, ("retry-after", "60")]), Some(wait(60)));
}

#[test]
fn cached_answer_reports_nothing_left() {
    let lines = |age| [("ratelimit", r#""default";r=0;t=30"#), ("x-ratelimit-remaining", "0"), ("age", age)];
    for preset in [HeaderPreset::RateLimit, HeaderPreset::Policy("default"), HeaderPreset::XRateLimit] {
        for (age, is_read) in [("0", true), ("1", false), ("3600", false), ("-1", true), ("old", true)] {
            let locked = locked(200, preset, &lines(age));
            assert_eq!(locked.is_some(), is_read, "{preset:?}, {age:?}: {locked:?}");
        }
    }
    // A refusal counts even if it comes from a cache.
    assert_eq!(locked(429, HeaderPreset::RateLimit, &lines("7")), Some(Throttle::remaining(0)));
}

#[test]
fn grpc_exhaustion_in_head_is_a_refusal_with_its_delay() {
    let retry_after = ("retry-after", "30");
    assert_eq!(locked(200, HeaderPreset::RateLimit, &[("grpc-status", "8"), retry_after]), Some(wait(30)));
    assert_eq!(locked(200, HeaderPreset::RateLimit, &[("grpc-status", "8")]), None, "a message may be too large");
    assert_eq!(locked(200, HeaderPreset::RateLimit, &[("grpc-status", "14"), retry_after]), None);
    assert_eq!(locked(200, HeaderPreset::RateLimit, &[("grpc-status", "0"), retry_after]), None);
}

#[test]
fn forbidden_is_a_refusal_if_its_preset_says_so() {
    let spent = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1800000030")];
    let often = [("x-ratelimit-remaining", "4000"), ("retry-after", "60")];
    let not_allowed = [("x-ratelimit-remaining", "4000")];
    assert_eq!(locked(403, HeaderPreset::XRateLimit, &spent), Some(wait(30)));
    assert_eq!(locked(403, HeaderPreset::XRateLimit, &often), Some(wait(60)));
    assert_eq!(locked(403, HeaderPreset::XRateLimit, &not_allowed), Some(Throttle::remaining(4000)));
    assert_eq!(locked(403, HeaderPreset::RateLimit, &often), None);
}

proptest! {
    #[test]
    fn header_never_panics_or_exceeds_the_maximum_wait(
        status in prop_oneof![Just(200_u16), Just(429), Just(503)],
        lines in prop::collection::vec((0..NAMES.len(), value()), 0..6),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(NAMES[name], value);
            }
        }
        let throttle = read_throttle(StatusCode::from_u16(status).unwrap(), &headers, HeaderPreset::ALL);
        prop_assert!(status != 429 || throttle.is_some());
        prop_assert!(throttle.is_none_or(|throttle| throttle.wait() <= Throttle::DEFAULT_MAX_WAIT));
    }
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[0-9.,:; hms\"a-zA-Z=-]{0,40}".prop_map(String::into_bytes),
        "[0-9]{1,30}(\\.[0-9]{1,30})?(ms|s|m|h)?".prop_map(String::into_bytes),
        "\"[a-z]{0,5}\";r=[0-9]{1,20};t=-?[0-9]{1,20}".prop_map(String::into_bytes),
        "[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT".prop_map(String::into_bytes),
        "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(Z|\\+[0-9]{2}:[0-9]{2})".prop_map(String::into_bytes),
    ]
}

const NAMES: [&str; 17] = [
    "age",
    "date",
    "retry-after",
    "retry-after-ms",
    "ratelimit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-rate-limit-reset",
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-limit",
    "anthropic-ratelimit-requests-remaining",
    "anthropic-ratelimit-requests-reset",
];
