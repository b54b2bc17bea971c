//! The story: when requests come, and what the crate answers.

use tollgate::{Admin, Decision, Key, ManualClock, MemoryStore, Rule, Store, Take};

use super::Picture;

/// A request that came at `at`. All times are in milliseconds from the beginning.
pub(crate) struct Asked {
    pub(crate) at: i64,
    /// When its token may be used; none if it was denied.
    pub(crate) acts: Option<i64>,
}

/// What became of each request of the story.
pub(crate) async fn requests(picture: &Picture) -> anyhow::Result<Vec<Asked>> {
    let world = World::of(picture).await?;
    let mut asked = Vec::new();
    for at in arrivals() {
        let decision = world.ask(at).await?;
        let wait = i64::try_from(decision.wait().as_millis())?;
        asked.push(Asked { at, acts: decision.is_granted().then_some(at + wait) });
    }
    Ok(asked)
}

/// How many tokens are left, ten times a second. To look is to take one, so each look is at a world of its own.
pub(crate) async fn tokens(picture: &Picture) -> anyhow::Result<Vec<(i64, u64)>> {
    let mut tokens = Vec::new();
    for look in (0..=END).step_by(100) {
        let mut world = World::of(picture).await?;
        for at in arrivals().filter(|&at| at <= look) {
            drop(world.ask(at).await?);
        }
        world.take = world.take.max_wait(std::time::Duration::ZERO);
        let decision = world.ask(look).await?;
        tokens.push((look, decision.remaining() + u64::from(decision.is_granted())));
    }
    Ok(tokens)
}

struct World {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    take: Take,
}

impl World {
    async fn of(picture: &Picture) -> anyhow::Result<Self> {
        let clock = ManualClock::default();
        clock.set(START);
        let store = MemoryStore::with_clock(clock.clone());
        let key = Key::try_from("third-party-api")?;
        let mut rule = picture.rule.clone();
        if let (Rule::Quota(quota), true) = (&rule, picture.provisioned) {
            store.create_bucket(&key, *quota).await?;
            rule = Rule::Provisioned;
        }
        let take = Take::from(key).rule(rule).max_wait(picture.longest_wait);
        Ok(Self { store, clock, take })
    }

    async fn ask(&self, at: i64) -> anyhow::Result<Decision> {
        self.clock.set(START + at * 1_000_000);
        Ok(self.store.take_one(&self.take).await??)
    }
}

/// A burst, a second one right after it, a steady stream, a pause, and a last burst.
fn arrivals() -> impl Iterator<Item = i64> {
    let burst = |from: i64, requests: i64| (0..requests).map(move |n| from + n * 200);
    burst(3_800, 6).chain(burst(5_200, 6)).chain((0..9).map(|n| 8_000 + n * 500)).chain(burst(17_200, 8))
}

/// How long the story lasts: whoever waits has had a turn by then.
pub(crate) const END: i64 = 24_000;
/// Three seconds into a period of the calendar's, which is to say that one begins two seconds into the story.
const START: i64 = 1_800_000_003_000_000_000;
