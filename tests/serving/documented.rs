//! What `docs/serving.md` shows of the examples is what they answer.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, ensure};
use axum::http::StatusCode;

use super::client::{Answer, Client};
use super::process::Process;

#[tokio::test]
async fn http_plans_answers_what_the_documentation_shows() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/serving.md"))?;
    let mut shown = text.split("$ curl -i ").skip(1).filter_map(|rest| rest.split_once('\n'));
    let mut next = || anyhow::Ok(shown.next().context("there are two answers")?.1);
    let (served, denied) = (next()?, next()?.split("```").next().context("it ends")?);

    let example = Process::start("http_plans", &["sqlite::memory:", "127.0.0.1:0"]).await?;
    let client = Client::new(example.address);
    assert_eq!(as_curl_prints(&client.get("/").await?)?, served);
    // The faster it asks, the sooner it is denied: ten come back each second.
    for _ in 0..10_000 {
        let answer = client.get("/").await?;
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            assert_eq!(as_curl_prints(&answer)?, denied.trim_end());
            return Ok(());
        }
    }
    anyhow::bail!("ten thousand requests were served")
}

/// Without the date, which is another one every second.
fn as_curl_prints(answer: &Answer) -> anyhow::Result<String> {
    let mut text = format!("HTTP/1.1 {}\n", answer.status);
    for (name, value) in answer.headers.iter().filter(|(name, _)| *name != "date") {
        writeln!(text, "{name}: {}", value.to_str()?)?;
    }
    ensure!(answer.headers.contains_key("date"));
    Ok(text + "\n" + std::str::from_utf8(&answer.body)?)
}
