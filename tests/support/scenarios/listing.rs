//! Lists with pages.

use tollgate::{
    Admin, Key, Mode, Quota, Rule, Take, Window,
    admin::{Filter, Override},
    model::WindowLevel,
};

use super::admin::{LATER, instant, longer, of_plan};
use super::windows::ten_a_second;
use super::{World, ms, under};

pub async fn a_list_has_pages_and_filters<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, prefix, plan) = (world.store(), world.key(), world.key());
    store.create_plan(&plan, "5/h".parse()?).await?;
    let keys = ["%x", ":A", ":a", ":a ", "_x"].map(|end| longer(&prefix, end));
    store.create_bucket(&keys[1], "7/h".parse()?).await?;
    let _ = world.decide(of_plan(&keys[2], &plan)).await?;
    for key in [&keys[0], &keys[3], &keys[4]] {
        let _ = world.decide(under(key, "10/h")?).await?;
    }
    let listed = async |filter: Filter, after: Option<&Key>, limit| {
        let page = store.list(&filter, after, limit).await?;
        anyhow::Ok(page.iter().map(|level| level.key().clone()).collect::<Vec<_>>())
    };
    let all = || Filter::default().prefix(prefix.clone());
    assert_eq!(listed(all(), None, 100).await?, keys);
    assert_eq!(listed(all(), None, 2).await?, keys[..2]);
    assert_eq!(listed(all(), Some(&keys[1]), 2).await?, keys[2..4]);
    assert_eq!(listed(all(), Some(&keys[3]), 2).await?, keys[4..]);
    assert_eq!(listed(Filter::default(), Some(&prefix), 5).await?, keys);
    assert_eq!(listed(Filter::default().prefix(longer(&prefix, "%")), None, 9).await?, keys[..1]);
    assert_eq!(listed(Filter::default().prefix(longer(&prefix, "_")), None, 9).await?, keys[4..]);
    assert_eq!(listed(all().plan(plan.clone()), None, 9).await?, keys[2..3]);
    assert_eq!(listed(Filter::default().plan(plan.clone()), None, 9).await?, keys[2..3]);
    assert_eq!(listed(all().provisioned(true), None, 9).await?, keys[1..2]);
    assert_eq!(listed(all().provisioned(false).plan(plan.clone()), None, 9).await?, keys[2..3]);
    assert_eq!(listed(all().provisioned(false), None, 9).await?.len(), 4);
    assert_eq!(store.peek(&keys[2]).await?.expect("listed").plan(), Some(&plan));
    Ok(())
}

pub async fn overrides_are_listed_page_by_page<W: World>(world: &W) -> anyhow::Result<()> {
    world.at_ms(LATER).await?;
    let (store, prefix) = (world.store(), world.key());
    let keys = ["a", "b", "c"].map(|end| longer(&prefix, end));
    let quota: Quota = "10 per 1500ms".parse()?;
    let overrides = [
        Override { quota: Some(quota), reason: "ticket 7".to_owned(), ..Override::default() },
        Override { mode: Some(Mode::Shadow), expires_at: Some(instant(LATER + 1500)), ..Override::default() },
        Override { quota: Some("3 once".parse()?), mode: Some(Mode::Block), ..Override::default() },
    ];
    // Created in reverse order.
    for (key, over) in keys.iter().zip(&overrides).rev() {
        store.set_override(key, over.clone()).await?;
    }
    let all: Vec<(Key, Override)> = keys.iter().cloned().zip(overrides).collect();
    assert_eq!(store.overrides(Some(&prefix), 2).await?, all[..2]);
    assert_eq!(store.overrides(Some(&keys[1]), 1).await?, all[2..]);
    // An expired override is listed until it is swept.
    world.at_ms(LATER + 2000).await?;
    assert_eq!(store.overrides(Some(&keys[0]), 1).await?, all[1..2]);
    for key in &keys {
        assert!(store.clear_override(key).await?);
    }
    let left = store.overrides(Some(&prefix), 9).await?;
    assert!(left.iter().all(|(key, _)| !keys.contains(key)), "{left:?}");
    Ok(())
}

pub async fn windows_are_listed_page_by_page(world: &impl World) -> anyhow::Result<()> {
    world.at_ms(0).await?;
    let (store, prefix) = (world.store(), world.key());
    let keys = ["", ":A", ":a", ":b", ":\u{e9}"].map(|end| Key::try_from(format!("{prefix}{end}")).expect("short"));
    let list = async |after: Option<&Key>, limit| store.windows(Some(&prefix), after, limit).await;
    let request = |key: &Key, window| Take::from(key.clone()).rule(Rule::Window(window));
    for (n, key) in keys.iter().enumerate() {
        let window = Window::new(3, ms(1000 * (1 + n as u64)), ms(500))?;
        for at in [0, 600] {
            world.at_ms(at).await?;
            assert!(world.decide(request(key, window)).await?.is_granted());
        }
    }
    // A bucket and a key with denials only are not windows with counts.
    assert!(world.decide(Take::from(keys[0].clone()).rule("5/h".try_into()?)).await?.is_granted());
    let never = Key::try_from(format!("{prefix}:never"))?;
    store.set_override(&never, Override { mode: Some(Mode::Block), ..Override::default() }).await?;
    assert!(!world.decide(request(&never, ten_a_second()?)).await?.is_granted());

    for at in [600, 1200, 1999, 2100, 9000] {
        world.at_ms(at).await?;
        let all = list(None, 100).await?;
        assert_eq!(all.iter().map(WindowLevel::key).collect::<Vec<_>>(), keys.iter().collect::<Vec<_>>());
        for level in &all {
            assert_eq!(Some(level), store.peek_window(level.key()).await?.as_ref(), "at {at}");
        }
        assert_eq!(list(None, 2).await?, all[..2]);
        assert_eq!(list(Some(&keys[1]), 2).await?, all[2..4]);
        assert_eq!(list(Some(&keys[4]), 2).await?, []);
        assert_eq!(list(None, 0).await?, []);
        assert_eq!(store.windows(Some(&keys[2]), None, 9).await?, all[2..3]);
        assert_eq!(store.windows(None, Some(&keys[0]), 1).await?, all[1..2]);
    }
    // Promised requests, and a clock that was set back.
    let window = Window::new(3, ms(1000), ms(500))?;
    assert!(world.decide(request(&keys[0], window).cost(3)).await?.is_granted());
    assert!(world.decide(request(&keys[0], window).cost(2).max_wait(ms(5000))).await?.is_granted());
    for (at, available) in [(9000, -2), (4000, 1)] {
        world.at_ms(at).await?;
        let level = list(None, 1).await?;
        assert_eq!(level, Vec::from_iter(store.peek_window(&keys[0]).await?), "at {at}");
        assert_eq!((level[0].available(), level[0].granted()), (available, 7), "at {at}");
    }
    for key in &keys {
        assert!(store.reset(key).await?);
    }
    assert_eq!(list(None, 100).await?, []);
    Ok(())
}
