//! `tollgate simulate`.

use std::io::Write;
use std::process::Stdio;

use serde_json::Value;

use crate::command::{Ran, tollgate};

/// A directory, as no database is needed.
fn directory() -> &'static std::path::Path {
    env!("CARGO_TARGET_TMPDIR").as_ref()
}

fn simulate(arguments: &[&str], input: &str) -> Ran {
    let mut command = tollgate(None, directory());
    command.arg("simulate").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it is read");
    Ran::new(child.wait_with_output().expect("it ends"))
}

fn json(arguments: &[&str]) -> Value {
    simulate(&[&["--json"], arguments].concat(), "").ended(0).json()
}

/// Requests granted and denied under each limit.
fn outcomes(report: &Value) -> Vec<(i64, i64)> {
    let requests = |limit: &Value, what: &str| limit[what]["requests"].as_i64().expect("a number");
    let limits = report["limits"].as_array().expect("limits");
    limits.iter().map(|limit| (requests(limit, "granted"), requests(limit, "denied"))).collect()
}

#[test]
fn a_file_of_arrivals_comes_to_a_table() {
    let traffic = "0 2\n0.1\n0.2\n0.9\n1.0 9\n# five seconds later\n6 2\n";
    let table = simulate(&["3 per 1s", "1/s burst 2", "--traffic", "-"], traffic).ended(0).out;
    let expected = "\
6s of traffic; method: allow

                                3 per 1s  1/s burst 2
arrivals                               6            6
granted                       3 (50.0 %)   2 (33.3 %)
denied                        2 (33.3 %)   3 (50.0 %)
never possible                1 (16.7 %)   1 (16.7 %)
tokens asked for                      16           16
tokens granted                         5            4
most asked for in any 2s              14           14
most granted in any 2s                 3            2
longest time of denials only       700ms        800ms
";
    assert_eq!(table, expected);
}

#[test]
fn simulated_limits_grant_as_computed() {
    let report = json(&["2 per 1s", "1/s burst 5", "--pattern", "steady:10/s", "--for", "10s"]);
    assert_eq!(outcomes(&report), [(20, 80), (14, 86)]);
    let report = json(&["10 in 5s at 1s", "7 once", "--pattern", "steady:10/s", "--for", "12s"]);
    // The window: ten at once, and ten again when the second that they came in is five seconds ago.
    assert_eq!(outcomes(&report), [(20, 100), (7, 113)]);
    assert_eq!(report["limits"][0]["max_granted_in_window"], 10);
}

#[test]
fn simulated_limits_of_one_key_grant_what_all_of_them_do() {
    let report = json(&["2/s; minute: 9/min burst 9", "2/s", "--pattern", "steady:10/s", "--for", "10s"]);
    // Nine of the minute's tokens, and the one that comes back in ten seconds.
    assert_eq!(outcomes(&report), [(10, 90), (21, 79)]);
    assert_eq!(report["limits"][0]["limit"], "2/s; minute: 9/m");
    let month = "2027-01-31T23:59:58Z\n2027-01-31T23:59:59Z\n2027-02-01T00:00:00Z\n2027-02-01T00:00:01Z\n";
    std::fs::write(directory().join("month.txt"), month).expect("written");
    assert_eq!(outcomes(&json(&["1/month", "1/month in -01:00", "--traffic", "month.txt"])), [(2, 2), (1, 3)]);
}

#[test]
fn simulated_wait_is_granted_later_or_denied_at_once() {
    let arguments = ["1/s", "--pattern", "burst:5 every 60s", "--max-wait", "3s"];
    let report = json(&arguments);
    assert_eq!(outcomes(&report), [(4, 1)]);
    let limit = &report["limits"][0];
    assert_eq!((&limit["waited"]["requests"], &limit["max_wait_ms"]), (&3.into(), &3000.into()));
    assert_eq!((&limit["mean_wait_ms"], &limit["max_granted_in_window"]), (&1500.into(), &1.into()));
}

#[test]
fn periods_are_the_calendars_unless_the_bucket_was_there_before() {
    let traffic = "2026-10-10T12:00:59Z\n2026-10-10T12:01:01Z\n2026-10-10T12:01:58Z\n";
    std::fs::write(directory().join("minute.txt"), traffic).expect("written");
    let arguments = ["1 per 1min", "1 per calendar 1min", "--traffic", "minute.txt"];
    assert_eq!(outcomes(&json(&arguments)), [(2, 1), (2, 1)]);
    let arguments = [&arguments[..], &["--provisioned"]].concat();
    assert_eq!(outcomes(&json(&arguments)), [(1, 2), (2, 1)]);
}

#[test]
fn an_access_log_is_traffic() {
    let log = "\
10.0.0.1 - - [10/Oct/2026:13:55:37 +0200] \"GET /b HTTP/1.1\" 200 12\n\
10.0.0.1 - - [10/Oct/2026:13:55:36 +0200] \"GET /a HTTP/1.1\" 200 12 \"-\" \"curl/8\"\n\
10.0.0.2 - - [10/Oct/2026:11:55:37 +0000] \"\\x16\\x03\" 400 0\n";
    simulate(&["1/s", "--traffic", "-"], log).ended(0).says(&["1s of traffic", "2 (66.7 %)"]);
}

#[test]
fn the_same_seed_makes_the_same_traffic_and_picture() {
    let run = |seed: &str, svg: &str| {
        let pattern = ["--pattern", "poisson:15/s", "--seed", seed, "--svg", svg];
        let report = json(&[&["10/s burst 20", "100 in 10s at 1s"], &pattern[..]].concat());
        (report, std::fs::read_to_string(directory().join(svg)).expect("it is drawn"))
    };
    let (report, svg) = run("7", "seven.svg");
    assert_eq!((&report, &svg), (&run("7", "again.svg").0, &run("7", "again.svg").1));
    assert_ne!(report, run("8", "eight.svg").0);
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    let printed =
        simulate(&["10/s burst 20", "100 in 10s at 1s", "--pattern", "poisson:15/s", "--seed", "7", "--svg", "-"], "");
    assert_eq!(printed.ended(0).out.trim_end(), svg.trim_end());
    for text in ["10/s burst 20", "100 in 10s at 1s", "granted", "denied", "tokens left", "seconds"] {
        assert!(svg.contains(text), "{text}");
    }
}

#[test]
fn empty_and_simultaneous_traffic_are_drawn() {
    for (pattern, lasts, wait) in
        [("burst:1 every 1h", "1s", "0s"), ("burst:5000 every 1h", "1ms", "30s"), ("poisson:1/d", "10ms", "0s")]
    {
        let arguments = ["1/s burst 3", "--pattern", pattern, "--for", lasts, "--max-wait", wait, "--svg", "few.svg"];
        simulate(&arguments, "").ended(0);
        let svg = std::fs::read_to_string(directory().join("few.svg")).expect("it is drawn");
        assert!(svg.contains("tokens left") && !svg.contains("NaN"), "{pattern}");
    }
}

#[test]
fn steady_traffic_is_drawn_as_equal_bars() {
    let svg = simulate(&["10/s burst 20", "--pattern", "steady:5/s", "--svg", "-"], "").ended(0).out;
    let bars = svg.lines().filter(|line| line.starts_with("<rect") && line.contains("fill=\"#08306B\""));
    let heights: Vec<_> = bars.map(|bar| attribute(bar, "height")).collect();
    assert!(heights.len() >= 20 && heights.iter().all(|height| *height == heights[0]), "{heights:?}");
}

#[test]
fn label_is_above_the_curve_of_waiting_requests() {
    let svg = simulate(&["2/s", "--pattern", "steady:10/s", "--max-wait", "30s", "--svg", "-"], "").ended(0).out;
    let (label, _) = svg.split_once("\ntokens left\n").expect("a label");
    let bottom: i64 = attribute(label.lines().last().unwrap_or_default(), "y").parse().expect("a number");
    let curve = svg.lines().find(|line| line.starts_with("<polyline") && line.contains("#0A9187")).expect("a curve");
    let heights = attribute(curve, "points").split([',', ' ']).skip(1).step_by(2).map_while(|y| y.parse::<i64>().ok());
    assert!(heights.min() >= Some(bottom + 16), "{bottom} and {curve}");
}

/// An attribute of an SVG element.
fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let value = element.split_once(&format!(" {name}=\"")).expect("the attribute").1;
    value.split('"').next().unwrap_or_default()
}

#[test]
fn the_largest_costs_are_counted_and_drawn() {
    let largest = "3155760000000000000";
    let traffic = (0..9).map(|second| format!("{second} {largest}")).collect::<Vec<_>>().join("\n");
    let limit = format!("{largest} once");
    simulate(&[&limit, "--traffic", "-", "--window", "1ms", "--svg", "large.svg"], &traffic).ended(0).says(&[largest]);
    simulate(&["1/s", "--traffic", "-"], "1 18446744073709551615\n").ended(66).says(&["line 1", "from 1 to"]);
}

#[test]
fn impossible_simulation_says_what_is_possible() {
    for (arguments, expected) in [
        (&["10 apples", "--pattern", "steady:1/s"][..], "write '10/s'"),
        (&["10 in 5s", "--pattern", "steady:1/s"], "write '100 in 60s at 5s'"),
        (&["unlimited", "--pattern", "steady:1/s"], "cannot simulate an unlimited quota"),
        (&["1/s; tokens: 2/s cost tokens", "--pattern", "steady:1/s"], "cannot simulate a named cost"),
        (&["10/month from day 32", "--pattern", "steady:1/s"], "write 'month', 'month from day 15'"),
        (&["10/s", "--pattern", "waves:1/s"], "write 'steady:50/s'"),
        (&["10/s", "--pattern", "steady:1000000000/s"], "at most 10000000"),
        (&["10/s", "--pattern", "burst:4000000000 every 36000d"], "at most 10000000"),
        (&["10/s", "--pattern", "on-off:100000000/s on 50s off 18000d"], "at most 10000000"),
        (&["10/s", "--pattern", "on-off:1/s on 1s off 1s + steady:100000/s", "--for", "100s"], "at most 10000000"),
        (&["10/s", "--pattern", "steady:1/s", "--for", "soon"], "soon"),
        (&["10/s", "--pattern", "steady:1/s", "--for", "0s"], "must last longer than 0 s"),
        (&["10/s", "--pattern", "steady:1/s", "--window", "0s"], "--window"),
        (&["10/s", "--traffic", "-", "--for", "5s"], "cannot be used with"),
        (&["10/s", "--traffic", "-", "--seed", "5"], "cannot be used with"),
        (&["10/s", "--pattern", "steady:1/s", "--json", "--svg", "-"], "draw into a file"),
        (&["10/s"], "--traffic <FILE>|--pattern <PATTERN>"),
        (&["10/s", "--pattern", "steady:1/s", "--for", "0s"], "hint: give it a length"),
        (&["1/s", "2/s", "3/s", "--pattern", "steady:1/s"], "3/s"),
    ] {
        assert_eq!(simulate(arguments, "").ended(2).says(&[expected]).out, "");
    }
}

#[test]
fn unreadable_and_unwritable_files_are_reported() {
    for (arguments, code, expected) in [
        (["--traffic", "/nowhere/at/all"], 66, "cannot read the traffic file /nowhere/at/all"),
        (["--traffic", "/nowhere/at/all"], 66, "hint: name an existing file"),
        (["--traffic", "/"], 66, "the traffic file /"),
        (["--traffic", "/dev/zero"], 66, "line 1 has 1048576 bytes or more"),
        (["--traffic", "-"], 66, "no arrival"),
        (["--pattern=steady:1/s", "--svg=/nowhere/at/all.svg"], 73, "cannot write /nowhere/at/all.svg"),
        (["--pattern=steady:1/s", "--svg=/"], 73, "cannot write /"),
    ] {
        assert_eq!(simulate(&[&["10/s"], &arguments[..]].concat(), "").ended(code).says(&[expected]).out, "");
    }
}

/// Five clients in five seconds: one asks ten times a second, the others once.
fn log_of_clients() -> String {
    let line =
        |client: &str, second: u32| format!("{client} - - [10/Oct/2026:13:55:3{second} +0200] \"GET /\" 200 1\n");
    let busy = (0..50).map(|n| line("10.0.0.9", n / 10));
    busy.chain((0..5).flat_map(|second| ["10.0.0.1", "::1"].map(|client| line(client, second)))).collect()
}

#[test]
fn limit_by_client_names_denied_clients() {
    let table = simulate(&["2/s burst 4", "5/s", "--traffic", "-", "--by-client"], &log_of_clients()).ended(0).out;
    let expected = "\
4s of traffic; method: allow

                                     2/s burst 4          5/s
arrivals                                      60           60
granted                              22 (36.7 %)  35 (58.3 %)
denied                               38 (63.3 %)  25 (41.7 %)
most asked for in any 2s by one client        20           20
most granted in any 2s by one client           6           10
longest time of denials only                  0ms          0ms
clients                                        3            3
clients denied                        1 (33.3 %)   1 (33.3 %)
denied to 10.0.0.9                   38 (76.0 %)  25 (50.0 %)
";
    let squeezed =
        |text: &str| text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>();
    assert_eq!(squeezed(&table), squeezed(expected));
    let all = simulate(&["2/s burst 4", "5/s", "--traffic", "-"], &log_of_clients()).ended(0).out;
    assert!(!all.contains("client"), "{all}");
    let json = simulate(&["2/s burst 4", "--traffic", "-", "--by-client", "--json"], &log_of_clients()).ended(0).json();
    let limit = &json["limits"][0];
    assert_eq!((&limit["clients"], &limit["clients_denied"]), (&3.into(), &1.into()));
    assert_eq!(limit["most_denied"], serde_json::json!([{"client": "10.0.0.9", "arrived": 50, "denied": 38}]));
}

#[test]
fn single_client_equals_its_own_lines() {
    let log = log_of_clients();
    let own: Vec<_> = log.lines().filter(|line| line.starts_with("10.0.0.9")).collect();
    let own = own.join("\n");
    for limit in ["2/s burst 4", "3 per 1s", "7 in 3s at 1s", "20 once"] {
        for more in [&[][..], &["--provisioned"], &["--max-wait", "1s"]] {
            let run = |log: &str, by: &[&str]| {
                let arguments = [&["--json", limit, "--traffic", "-"], more, by].concat();
                let ran = simulate(&arguments, log).ended(0).json();
                ran["limits"][0].clone()
            };
            let (each, alone) = (run(&log, &["--by-client"]), run(&own, &[]));
            assert_eq!(each["most_denied"][0]["denied"], alone["denied"]["requests"], "{limit} {more:?}");
            assert_eq!(each["max_granted_in_window"], alone["max_granted_in_window"], "{limit} {more:?}");
        }
    }
}

#[test]
fn skipped_lines_are_counted_on_request() {
    let traffic = "0 1 a\nnonsense\n1 1\n2 1 b\n";
    simulate(&["1/s", "--traffic", "-", "--by-client"], traffic).ended(66).says(&["line 2", "--skip-unreadable"]);
    let arguments = ["1/s", "--traffic", "-", "--skip-unreadable"];
    simulate(&arguments, traffic).ended(0).says(&["2s of traffic; method: allow; 1 line skipped\n"]);
    // Without a client it is nobody's.
    let by_client = [&arguments[..], &["--by-client"]].concat();
    simulate(&by_client, traffic).ended(0).says(&["; 2 lines skipped\n"]);
    assert_eq!(simulate(&[&by_client[..], &["--json"]].concat(), traffic).ended(0).json()["skipped_lines"], 2);
    simulate(&by_client, "nonsense\n").ended(66).says(&["no arrival"]);
    for wrong in [&["--pattern", "steady:1/s", "--by-client"][..], &["--traffic", "-", "--by-client", "--svg", "a.svg"]]
    {
        simulate(&[&["1/s"], wrong].concat(), "").ended(2).says(&["cannot be used with"]);
    }
}
