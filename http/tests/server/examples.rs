//! The server examples under load.

use std::iter::repeat_n;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use axum::http::StatusCode;
use serde_json::json;
use tokio::task::JoinSet;
use tollgate::{
    Admin, Key, PgStore, Quota,
    admin::{Filter, Override},
};

use super::client::{Answer, Client};
use super::process::{OwnDatabase, Process, SERVERS};

/// One client sends one request after the other, so the answers are in the order of the takes.
#[tokio::test(flavor = "multi_thread")]
async fn http_burst_serves_ten_then_one_per_token() -> anyhow::Result<()> {
    let example = Process::start("http_burst", &["127.0.0.1:0"]).await?;
    let client = Client::new(example.address);
    // On a busy machine, the client can be slower than the refill.
    poll("tokens are used as they come back", async || {
        // Time to refill the bucket.
        tokio::time::sleep(Duration::from_millis(11)).await;
        let begun = Instant::now();
        let (mut served, mut was_served, mut turns, mut at_that_rate) = (0, true, 0, false);
        while begun.elapsed() < Duration::from_millis(100) {
            let is_served = is_served(&client.get("/").await?)?;
            served += u128::from(is_served);
            let back = begun.elapsed().as_millis();
            ensure!(served <= 10 + back + 1, "{served} were served, and {back} came back");
            ensure!(is_served || served >= 10, "{served} were served before one was denied");
            turns += u32::from(is_served && !was_served);
            was_served = is_served;
            // At half the rate there are never this many.
            at_that_rate |= served > 10 + back / 2 + 1;
        }
        Ok(at_that_rate && turns >= 2)
    })
    .await
}

/// Many clients request more than one token per millisecond, the rate of the refill.
#[tokio::test(flavor = "multi_thread")]
async fn http_burst_serves_ten_plus_refills() -> anyhow::Result<()> {
    let example = Process::start("http_burst", &["127.0.0.1:0"]).await?;
    let clients = [(); 8].map(|()| Client::http2(example.address));
    for client in &clients {
        // The first request opens the connection.
        is_served(&client.get("/").await?)?;
    }
    poll("more is asked for than comes back", async || {
        // Time to refill the bucket.
        tokio::time::sleep(Duration::from_millis(11)).await;
        let (begun, all_served) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let mut load = JoinSet::new();
        for client in clients.iter().flat_map(|client| repeat_n(client.clone(), 16)) {
            let all_served = Arc::clone(&all_served);
            load.spawn(async move {
                let mut denied = 0;
                while begun.elapsed() < Duration::from_millis(500) {
                    if !is_served(&client.get("/").await?)? {
                        denied += 1;
                        continue;
                    }
                    let served = all_served.fetch_add(1, Ordering::SeqCst) + 1;
                    let back = begun.elapsed().as_millis();
                    ensure!(u128::from(served) <= 10 + back + 1, "{served} were served, and {back} came back");
                }
                Ok(denied)
            });
        }
        let mut denied = 0;
        while let Some(counted) = load.join_next().await {
            denied += counted??;
        }
        Ok(denied > 0)
    })
    .await
}

fn is_served(answer: &Answer) -> anyhow::Result<bool> {
    match (answer.status, &answer.body[..]) {
        (StatusCode::OK, b"success\n") => Ok(true),
        (StatusCode::TOO_MANY_REQUESTS, b"rate limited\n") => Ok(false),
        _ => bail!("{answer:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_plans_processes_share_a_limit_across_plan_changes() -> anyhow::Result<()> {
    let database = OwnDatabase::create().await?;
    let pool = database.pool().await?;
    PgStore::from(pool.clone()).create_plan(&Key::try_from("free")?, Quota::once(20)?.into()).await?;
    let one = Process::start("http_plans", &[&database.url, "127.0.0.1:0"]).await?;
    let two = Process::start("http_plans", &[&database.url, "127.0.0.1:0"]).await?;

    // Both servers are under load until the end. The load counts served requests.
    let (done, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut load = JoinSet::new();
    for address in [one.address, two.address] {
        let (done, served) = (Arc::clone(&done), Arc::clone(&served));
        load.spawn(async move {
            let client = Client::new(address);
            while !done.load(Ordering::SeqCst) {
                served.fetch_add(u64::from(client.get("/").await?.status == StatusCode::OK), Ordering::SeqCst);
            }
            anyhow::Ok(())
        });
    }
    let watcher = Client::new(one.address);
    let denied = async || anyhow::Ok(watcher.get("/report").await?.status == StatusCode::TOO_MANY_REQUESTS);
    // A route has its own bucket. Only these alternating requests use up this one.
    let (mut reports, mut denials) = ([0, 0], 0);
    let watchers = [watcher.clone(), Client::new(two.address)];
    for (turn, watcher) in watchers.iter().enumerate().cycle() {
        let status = watcher.get("/report").await?.status;
        let served = status == StatusCode::OK;
        ensure!(served || status == StatusCode::TOO_MANY_REQUESTS, "{status}");
        reports[turn] += u32::from(served);
        denials = if served { 0 } else { denials + 1 };
        if denials == 2 {
            break;
        }
    }
    assert_eq!(reports, [10, 10]);
    let answer = watcher.get("/report").await?;
    assert_eq!(
        answer.json()?,
        json!({ "message": "Too many requests. No retry time is known.", "retry_after_seconds": null })
    );
    assert_eq!(answer.header("ratelimit")?, Some("\"default\";r=0"));

    // SQL changes the plan of all clients: tokens now return all at once.
    let changed =
        "update tollgate.token_plans set capacity = 30, refill_seconds = 0.03, refill = 'interval' where name = 'free'";
    sqlx::query(changed).execute(&pool).await?;
    poll("the new plan is in force", async || Ok(!denied().await?)).await?;
    poll("the load is served by it", async || Ok(served.load(Ordering::SeqCst) > 20)).await?;
    // A paying client has another plan, and its own bucket.
    let paying = watcher.get_with("/report", &[("x-api-key", "of-a-paying-client")]).await?;
    assert_eq!((paying.status, &paying.body[..]), (StatusCode::OK, &b"99 left\n"[..]));

    // SQL changes the plan back to one that lets no request pass, within a second.
    let none = "update tollgate.token_plans set capacity = 1, refill_seconds = 86400, refill = 'continuous' where name = 'free'";
    sqlx::query(none).execute(&pool).await?;
    poll("nobody passes any more", denied).await?;
    done.store(true, Ordering::SeqCst);
    while let Some(client) = load.join_next().await {
        client??;
    }
    for address in [one.address, two.address] {
        let client = Client::new(address);
        // The process can still have a denial by the previous plan in its cache, which states a short wait.
        poll("what was there is used up", async || Ok(client.get("/").await?.retry_after()? > 1)).await?;
        let denied = client.get("/").await?;
        let again = denied.retry_after()?;
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
        assert!((80_000..=86_400).contains(&again), "{again}");
        let message = format!("Too many requests. Try again in {again} s.");
        assert_eq!(denied.json()?, json!({ "message": message, "retry_after_seconds": again }));
    }
    drop((one, two));
    database.drop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_of_http_plans_share_a_limit_on_every_server() -> anyhow::Result<()> {
    for variable in SERVERS {
        let database = OwnDatabase::create_on(variable).await?;
        let one = Process::start("http_plans", &[&database.url, "127.0.0.1:0"]).await?;
        let two = Process::start("http_plans", &[&database.url, "127.0.0.1:0"]).await?;
        let clients = [one.address, two.address].map(Client::new);
        // Ten at once, then ten a second.
        let mut served = 0;
        let denied = loop {
            let answer = clients[served % 2].get("/").await?;
            if answer.status != StatusCode::OK {
                break answer;
            }
            served += 1;
            ensure!(served < 1000, "{variable}: nothing is denied");
        };
        ensure!(served >= 10, "{variable}: {served} were served");
        let again = denied.retry_after()?;
        let message = format!("Too many requests. Try again in {again} s.");
        assert_eq!(denied.json()?, json!({ "message": message, "retry_after_seconds": again }), "{variable}");
        drop((one, two));
        database.drop().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn http_api_keys_serves_known_keys_also_in_an_outage() -> anyhow::Result<()> {
    let database = OwnDatabase::create().await?;
    let store = PgStore::from(database.pool().await?);
    for (plan, tokens) in [("free", 2), ("paid", 3)] {
        store.create_plan(&Key::try_from(plan)?, Quota::once(tokens)?.into()).await?;
    }
    let example = Process::start("http_api_keys", &[&database.url, "127.0.0.1:0"]).await?;
    let client = Client::new(example.address);
    let get = async |key: &str| client.get_with("/", &[("x-api-key", key)]).await;
    for (client, tokens) in [("ada", 2), ("bob", 3)] {
        let key = format!("key-of-{client}");
        for left in (0..tokens).rev() {
            let answer = get(&key).await?;
            assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, format!("hello {client}\n").as_bytes()));
            assert_eq!(answer.header("ratelimit")?, Some(&*format!("\"default\";r={left}")));
        }
        assert_eq!(get(&key).await?.status, StatusCode::TOO_MANY_REQUESTS);
    }
    for key in ["", "invented", "key-of-eve"] {
        assert_eq!(get(key).await?.status, StatusCode::UNAUTHORIZED, "{key}");
    }
    let buckets = store.list(&Filter::default(), None, 9).await?;
    assert_eq!(buckets.iter().map(|bucket| bucket.key().as_str()).collect::<Vec<_>>(), ["ada", "bob"]);

    // Without the database, the fallback decides for the clients that are known.
    database.drop().await?;
    poll("the fallback grants", async || Ok(get("key-of-ada").await?.status == StatusCode::OK)).await?;
    poll("the fallback denies", async || Ok(get("key-of-ada").await?.status == StatusCode::TOO_MANY_REQUESTS)).await?;
    assert_eq!(get("invented").await?.status, StatusCode::SERVICE_UNAVAILABLE);
    Ok(())
}

/// Each client's bucket has twenty tokens that do not come back for days, so what was charged shows.
#[tokio::test(flavor = "multi_thread")]
async fn http_stream_charges_what_was_sent() -> anyhow::Result<()> {
    let database = OwnDatabase::create().await?;
    let store = PgStore::from(database.pool().await?);
    let example = Process::start("http_stream", &[&database.url, "127.0.0.1:0"]).await?;
    let client = async |name: &str| {
        store
            .set_override(&Key::try_from(name)?, Override { quota: Some("20/50d".parse()?), ..Override::default() })
            .await?;
        let request = reqwest::Client::new().get(format!("http://{}/", example.address)).header("x-api-key", name);
        anyhow::Ok(request)
    };
    let available = async |name: &str| {
        let level = store.peek(&Key::try_from(name)?).await?;
        anyhow::Ok(level.context("it has a bucket")?.available())
    };

    let whole = client("whole").await?;
    let sent = whole.try_clone().context("it has no body")?.send().await?.text().await?.matches("data: ").count();
    let debt = 20 - i64::try_from(sent)?;
    ensure!(debt < 0, "{sent} words leave no debt");
    poll("the words are charged", async || Ok(available("whole").await? == debt)).await?;
    assert_eq!(whole.send().await?.status(), StatusCode::TOO_MANY_REQUESTS);

    // A client that leaves after the first words is charged for less. A busy server can send all before it notices.
    let leavers = AtomicU64::new(0);
    poll("a client that left is charged", async || {
        let name = format!("left {}", leavers.fetch_add(1, Ordering::SeqCst));
        let mut response = client(&name).await?.send().await?;
        response.chunk().await?.context("a word")?;
        response.chunk().await?.context("a second word")?;
        drop(response);
        poll("the words are charged", async || Ok(available(&name).await? < 19)).await?;
        Ok(available(&name).await? > debt)
    })
    .await?;
    drop(example);
    database.drop().await
}

/// Repeats the check until it succeeds.
async fn poll(what: &str, is_so: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let patience = Instant::now() + Duration::from_secs(30);
    while !is_so().await? {
        ensure!(Instant::now() < patience, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}
