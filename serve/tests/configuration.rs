//! Mistakes in configuration files, each with its line and column.

use tollgate_serve::Config;

/// Each mistake, and the beginning of its message.
const MISTAKES: &[(&str, &str)] = &[
    (
        "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: { unit: decade, requests_per_unit: 5 }",
        "4:25: unknown unit 'decade'",
    ),
    ("domain: edge\ndescriptors:\n  - key: a\n    rate_limit: { unit: day }", "4:17: requests_per_unit is missing"),
    ("domain: edge\ndescriptors:\n  - key: a\n    rate_limit: { requests_per_unit: 5 }", "4:17: unit is missing"),
    (
        "domain: edge\ndescriptors:\n  - key: a\n    rate_limit: { unlimited: true, unit: day, requests_per_unit: 5 }",
        "4:17: give one limit",
    ),
    ("domain: edge\ndescriptors:\n  - key: a\n    rate_limit: {}", "4:17: give one limit"),
    ("domain: edge\ndescriptors:\n  - key: a\n    rate_limits: {}", "4:5: unknown field `rate_limits`"),
    (
        "domain: edge\ndescriptors:\n  - { key: a, rate_limit: { unit: day, requests_per_unit: 5, name: x, replaces: [{ name: x }] } }",
        "3:27: replaces names no limit, or the limit itself",
    ),
    ("domain: edge\ndescriptors:\n  - key: ''\n", "3:10: the key of a descriptor is empty"),
    ("domain: edge\ndescriptors:\n  - value: a\n", "3:5: missing field `key`"),
    ("domain: ''\n", "1:9: the domain is empty"),
    ("descriptors:\n  - key: a\n", "2:10: the file has descriptors and no domain"),
    ("domain: edge\ndomain: edge\n", "2:1: duplicate"),
    (
        "domain: edge\ndescriptors:\n  - { key: a, rate_limit: { unit: day, requests_per_unit: 5 } }\n  - { key: a, rate_limit: { unit: day, requests_per_unit: 6 } }",
        "4:12: descriptor 'a' has a limit already",
    ),
    (
        "domain: edge\ndescriptors:\n  - { key: a, share_threshold: true }",
        "3:12: share_threshold needs a value with '*'",
    ),
    ("domain: edge\ndescriptors:\n  - { key: a, rate_limit: { tollgate: { limit: 10/fortnight } } }", "3:48: "),
    ("domain: edge\ndescriptors:\n  - { key: a, tollgate: { limit: 10/s } }", "3:34: a limit belongs below rate_limit"),
    ("domain: edge\ntollgate: { plan: free }", "2:19: a whole file has no limit"),
    ("domain: edge\ntollgate: { deadline: 3m }", "2:23: '3m' is not a deadline"),
    ("domain: edge\ntollgate: { on_error: ajar }", "2:23: "),
    ("domain: edge\ntollgate: { on_error: { local: 5 in 1m at 1s } }", "2:32: a local limit is one quota"),
    (
        "domain: edge\ndescriptors:\n  - { key: a, rate_limit: { tollgate: { limit: 5 in 1m at 1s, refunds: true } } }",
        "3:27: a sliding window takes nothing back",
    ),
    (
        "domain: edge\ndescriptors:\n  - { key: a, rate_limit: { tollgate: { limit: '60/h; t: 9/h cost words' } } }",
        "3:48: proxies state no named costs",
    ),
    ("checks:\n  login: { key: [x], limits: [60/h cost words] }", "2:31: proxies state no named costs"),
    ("checks:\n  'a b': { key: [x], limits: [1/s] }", "2:10: 'a b' is not a name of a check"),
    ("checks:\n  login: { key: [], limits: [1/s] }", "2:10: check 'login' has no key"),
    ("checks:\n  login: { key: ['{ip}'], limits: [1/s] }", "2:18: unknown part of a key '{ip}'"),
    ("checks:\n  login: { key: ['{header:a b}'], limits: [1/s] }", "2:18: 'a b' is not the name of a header"),
    ("checks:\n  login: { key: [x] }", "2:10: check 'login': give either limits, plan or plan_of"),
    ("checks:\n  login: { key: [x], limits: [1/s], deny_status: 200 }", "2:50: deny_status must be 400 to 599"),
    ("checks:\n  login: { key: [x], limits: [1/s], trusted: [a] }", "2:47: invalid network 'a'"),
    ("checks:\n  login: { key: [x], limits: [1/s], mode: maybe }", "2:43: "),
    ("domain: [", "1:"),
];

#[test]
fn each_mistake_is_found_at_its_place() {
    let mut wrong = Vec::new();
    for (yaml, expected) in MISTAKES {
        let message = Config::parse(yaml).expect_err(yaml).to_string();
        if !message.starts_with(expected) || message.contains('\n') {
            wrong.push(format!("{yaml}\n  {message}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_setting_of_ratelimit_is_accepted() {
    let yaml = "
domain: edge
descriptors:
  - key: user
    value: 'x*'
    share_threshold: true
    detailed_metric: true
    value_to_metric: true
    quota_mode: true
    metadata: { tier: gold, nested: { n: 1, list: [true, null] } }
    rate_limit:
      name: narrow
      unit: MINUTE
      requests_per_unit: 5
      replaces: [{ name: wide }]
    descriptors:
      - key: path
        value: 404
        shadow_mode: true
        rate_limit: { unlimited: true }
";
    let config = Config::parse(yaml).expect("a configuration").to_string();
    assert_eq!(config, "edge user_x*: 5 per calendar 1m\nedge user_x*.path_404: unlimited, mode shadow\n");
}
