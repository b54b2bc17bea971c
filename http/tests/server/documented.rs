//! Compares the examples' answers with those in `docs/api-keys.md` and `README.md`.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use axum::http::StatusCode;
use tokio::process::Command;

use super::client::{Answer, Client};
use super::process::{OwnDatabase, Process};

#[tokio::test]
async fn http_api_keys_answers_as_documented() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../docs/api-keys.md"))?;
    let program = std::fs::read_to_string(root.join("examples/http_api_keys/main.rs"))?;
    let (_, code) = program.split_once("\n\n").context("it begins with its purpose")?;
    ensure!(page.contains(&format!("```rust,no_run\n{code}```\n")), "docs/api-keys.md does not show {code}");
    let mut shown = page.split("$ curl -i ").skip(1).filter_map(|rest| rest.split_once('\n'));
    let mut next = || anyhow::Ok(shown.next().context("there are two answers")?.1);
    let (served, denied) = (next()?, next()?.split("```").next().context("it ends")?);
    let served = served.split("$ curl").next().context("it ends")?;

    let database = OwnDatabase::create().await?;
    let example = Process::start("http_api_keys", &[&database.url, "127.0.0.1:0"]).await?;
    let client = Client::new(example.address);
    let get = async || client.get_with("/", &[("x-api-key", "key-of-ada")]).await;
    assert_eq!(as_curl_prints(&get().await?)?, served);
    // Ten tokens return each second, so the loop must be faster than that to be denied.
    let denial = async || {
        for _ in 0..10_000 {
            let answer = get().await?;
            if answer.status == StatusCode::TOO_MANY_REQUESTS {
                return anyhow::Ok(answer);
            }
        }
        anyhow::bail!("ten thousand requests were served")
    };
    assert_eq!(as_curl_prints(&denial().await?)?, denied.trim_end());
    drop(example);
    database.drop().await
}

/// Runs curl itself, as readers do.
#[tokio::test]
async fn http_path_window_answers_curl_as_documented() -> anyhow::Result<()> {
    let curl = Command::new("curl").arg("--version").output().await;
    ensure!(curl.is_ok_and(|curl| curl.status.success()), "curl is absent: install it, or put it in the path");
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md"))?;
    let begin = "```text\n$ cargo run -p tollgate-http --example http_path_window";
    let block = text.split_once(begin).and_then(|(_, rest)| rest.split_once("```")).context("a block")?.0;
    let mut shown = block.split("\n$ ").map(|shown| shown.split_once('\n').unwrap_or((shown, "")));
    let listens = shown.next().context("it is started")?.1;

    let example = Process::start("http_path_window", &["sqlite::memory:", "127.0.0.1:0"]).await?;
    let port = format!(":{}", example.address.port());
    assert_eq!(listens.replace(":3000", &port), format!("listening on http://{}", example.address));
    let mut tried = 0;
    for (command, output) in shown {
        let ran = Command::new("sh").arg("-c").arg(command.replace(":3000", &port)).output().await?;
        let ran = String::from_utf8(ran.stdout)?;
        // Ignores spaces, because implementations of uniq pad numbers differently.
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(&ran), words(output), "{command}");
        tried += 1;
    }
    ensure!(tried > 0, "README.md shows no command");
    Ok(())
}

/// Formats an answer as curl does, without the date.
fn as_curl_prints(answer: &Answer) -> anyhow::Result<String> {
    let mut text = format!("HTTP/1.1 {}\n", answer.status);
    for (name, value) in answer.headers.iter().filter(|(name, _)| *name != "date") {
        writeln!(text, "{name}: {}", value.to_str()?)?;
    }
    ensure!(answer.headers.contains_key("date"));
    Ok(text + "\n" + std::str::from_utf8(&answer.body)?)
}
