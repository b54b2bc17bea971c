use std::io::Write as _;
use std::process::ExitCode;

use tollgate::{
    Admin, Error, Key,
    admin::{BucketLevel, Filter},
};

use crate::output::{Layout, say, width_to_fit};
use crate::paging::{PAGE, Skipped};
use crate::quota_args::{key, prefix};

mod level;
mod reader;
mod writer;

use level::{Level, ListOrder};
use reader::{Admits, PageReader};
use writer::Writer;

/// List buckets, or sliding windows: the first of them by key, or those that come first in another order
#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag by itself")]
#[command(after_help = "Examples:\n\
\x20 tollgate list --prefix user: --sort available   # the emptiest of those whose key begins with user:\n\
\x20 tollgate list --windows --sort available     # the sliding windows that are used up most\n\
\x20 tollgate list --json | jq '.[] | select(.available <= 0).key'")]
pub(crate) struct Args {
    /// Sliding windows, and no buckets
    #[arg(long, conflicts_with_all = ["plan", "provisioned", "first_use"])]
    windows: bool,
    /// Only show keys that start with PREFIX
    #[arg(long, value_parser = prefix)]
    prefix: Option<Key>,
    /// Those that follow this plan
    #[arg(long, value_name = "NAME", value_parser = key)]
    plan: Option<Key>,
    /// Those that were provisioned
    #[arg(long, conflicts_with = "first_use")]
    provisioned: bool,
    /// Those that their first request made
    #[arg(long)]
    first_use: bool,
    /// In which order
    #[arg(long, value_enum, default_value_t = ListOrder::Key)]
    sort: ListOrder,
    /// The other way round
    #[arg(long)]
    reverse: bool,
    /// How many at most; 0: all [default: 100; with --json all]
    #[arg(long, value_name = "BUCKETS")]
    limit: Option<usize>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
    /// Print every column and key in full, even if lines do not fit the terminal
    #[arg(long, conflicts_with = "json")]
    wide: bool,
}

impl Args {
    pub(crate) async fn run(self, store: &impl Admin) -> anyhow::Result<ExitCode> {
        let layout = Layout::within(width_to_fit(self.wide)).keeping(self.sort.heading());
        let out = Writer::new(anstream::stdout(), self.json, layout);
        let skipped = Skipped::default();
        if self.windows {
            let prefix = self.prefix.as_ref();
            let page = async |after: Option<&Key>, limit| Ok(skipped.rows(store.windows(prefix, after, limit).await?));
            let listed = self.list(PageReader::new(page, None), out).await;
            skipped.warn();
            return listed;
        }
        // No index knows plans, nor who was provisioned: the database could look for those in a large table for longer than
        // it has time for an answer.
        let filter = self.prefix.iter().cloned().fold(Filter::default(), Filter::prefix);
        let page = async |after: Option<&Key>, limit| Ok(skipped.rows(store.list(&filter, after, limit).await?));
        let listed = self.list(PageReader::new(page, self.admits()), out).await;
        skipped.warn();
        listed
    }

    /// Which buckets are asked for beside by their keys, if not all.
    fn admits(&self) -> Option<Admits<'_, BucketLevel>> {
        let provisioned = (self.provisioned || self.first_use).then_some(self.provisioned);
        let plan = self.plan.as_ref();
        if plan.is_none() && provisioned.is_none() {
            return None;
        }
        Some(Box::new(move |level| {
            plan.is_none_or(|plan| level.plan() == Some(plan))
                && provisioned.is_none_or(|provisioned| level.is_provisioned() == provisioned)
        }))
    }

    async fn list<L: Level, P: AsyncFn(Option<&Key>, u32) -> Result<Vec<L>, Error>>(
        &self,
        reader: PageReader<'_, L, P>,
        mut out: Writer<impl std::io::Write>,
    ) -> anyhow::Result<ExitCode> {
        let limit = match self.limit {
            None if !self.json => 100,
            None | Some(0) => usize::MAX,
            Some(limit) => limit,
        };
        let is_in_key_order = self.sort == ListOrder::Key && !self.reverse;
        let is_more = if is_in_key_order {
            in_key_order(reader, limit, &mut out).await?
        } else {
            self.sorted(reader, limit, &mut out).await?
        };
        let is_filtered = self.prefix.is_some() || self.plan.is_some() || self.provisioned || self.first_use;
        let none = if is_filtered { format!("no {} match these options", L::NAMES[1]) } else { L::NONE.to_owned() };
        out.end(&none)?;
        if is_more && self.json {
            // Ignores an unwritable standard error.
            let _ = writeln!(anstream::stderr(), "… and more: without `--limit`, or with `--limit 0`, all are listed");
        } else if is_more {
            say(format!("… and more: `--limit 0` lists all, `--sort available` the emptiest {limit}"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Writes the first in another order, and says whether there are more. No more than a few times their number are kept.
    async fn sorted<L: Level, P: AsyncFn(Option<&Key>, u32) -> Result<Vec<L>, Error>>(
        &self,
        mut reader: PageReader<'_, L, P>,
        limit: usize,
        out: &mut Writer<impl std::io::Write>,
    ) -> anyhow::Result<bool> {
        let (mut levels, mut found) = (Vec::new(), 0);
        while let Some(page) = reader.next(usize::MAX).await? {
            found += page.len();
            levels.extend(page);
            if levels.len() > limit.saturating_mul(2) {
                self.keep_first(limit, &mut levels);
            }
        }
        drop(reader);
        self.keep_first(limit, &mut levels);
        for part in levels.chunks(PAGE as usize) {
            if !out.write(part)? {
                return Ok(false);
            }
        }
        Ok(found > limit)
    }

    fn keep_first<L: Level>(&self, limit: usize, levels: &mut Vec<L>) {
        levels.sort_unstable_by(|one, other| {
            let order = one.compare(other, self.sort).then_with(|| one.key().cmp(other.key()));
            if self.reverse { order.reverse() } else { order }
        });
        levels.truncate(limit);
    }
}

/// Writes the first by key while it reads on, and says whether there are more; a page at a time, so that few are one table.
async fn in_key_order<L: Level, P: AsyncFn(Option<&Key>, u32) -> Result<Vec<L>, Error>>(
    mut reader: PageReader<'_, L, P>,
    mut limit: usize,
    out: &mut Writer<impl std::io::Write>,
) -> anyhow::Result<bool> {
    let mut levels = Vec::new();
    // One more than wanted says whether there are more.
    while let Some(page) = reader.next(limit.saturating_add(1)).await? {
        levels.extend(page);
        let is_more = levels.len() > limit;
        levels.truncate(limit);
        if is_more || levels.len() >= PAGE as usize {
            limit -= levels.len();
            let is_read = reader.aside(is_more, || out.write(&levels))?;
            if is_more || !is_read {
                return Ok(is_more && is_read);
            }
            levels.clear();
        }
    }
    reader.aside(true, || out.write(&levels))?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io;

    use clap::Parser;
    use serde_json::Value;
    use tollgate::{MemoryStore, Quota, Take};

    use super::*;
    use crate::levels::BucketJson;
    use crate::output::pretty;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Args {
        Line::try_parse_from([&["list"], words].concat()).expect("arguments").args
    }

    /// Many that a first request made, and two that were provisioned.
    async fn store() -> MemoryStore {
        let (store, quota) = (MemoryStore::new(), Quota::try_from(Quota::per_hour(9)).expect("a quota"));
        for n in 0..4998 {
            let key = Key::try_from(format!("user:{n:04}")).expect("a key");
            let decision = store.decide(&Take::from(key).rule(quota.into())).expect("a decision");
            assert!(decision.is_granted());
        }
        for key in ["user:0007:api", "user:4990:api"] {
            store.create_bucket(&Key::try_from(key).expect("a key"), quota).await.expect("it is made");
        }
        store
    }

    /// Keeps the output of a reader that closes the pipe after `writes` writes.
    struct Pipe<'a> {
        written: &'a RefCell<Vec<u8>>,
        writes: usize,
    }

    impl io::Write for Pipe<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes = self.writes.checked_sub(1).ok_or(io::ErrorKind::BrokenPipe)?;
            self.written.borrow_mut().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Lists the store: returns the output, whether there is more, and how many rows each read requested.
    async fn listed(store: &MemoryStore, words: &[&str], writes: usize) -> (String, bool, Vec<u32>) {
        let (args, requested, written) = (args(words), RefCell::new(Vec::new()), RefCell::default());
        let page = async |after: Option<&Key>, limit| {
            requested.borrow_mut().push(limit);
            Ok(store.list(&Filter::default(), after, limit).await?.into_vec())
        };
        let mut out = Writer::new(Pipe { written: &written, writes }, args.json, Layout::default());
        let limit = args.limit.unwrap_or(usize::MAX);
        let is_more = in_key_order(PageReader::new(page, args.admits()), limit, &mut out).await.expect("it is listed");
        out.end(BucketLevel::NONE).expect("it is written");
        (String::from_utf8(written.into_inner()).expect("text"), is_more, requested.into_inner())
    }

    #[tokio::test]
    async fn list_filter_matches_across_pages() {
        let store = store().await;
        for (limit, found, more, pages) in [("3", 2, false, 6), ("2", 2, false, 6), ("1", 1, true, 5)] {
            let (out, is_more, requested) = listed(&store, &["--provisioned", "--json", "--limit", limit], 9).await;
            let json: Value = serde_json::from_str(&out).expect("JSON");
            assert_eq!((json.as_array().map(Vec::len), is_more), (Some(found), more), "--limit {limit}");
            assert_eq!(requested, vec![PAGE; pages], "--limit {limit}");
        }
    }

    #[tokio::test]
    async fn paged_list_equals_unpaged_list() {
        let store = store().await;
        let all = store.list(&Filter::default(), None, 9999).await.expect("they are listed");
        let at_once = pretty(&all.iter().map(BucketJson::from).collect::<Vec<_>>()) + "\n";
        let (out, is_more, requested) = listed(&store, &["--json"], 9).await;
        assert!(out == at_once && !is_more, "{} bytes, and not {}", out.len(), at_once.len());
        assert_eq!(requested, vec![PAGE; 6]);
        let none = listed(&MemoryStore::new(), &["--json"], 9).await.0;
        assert_eq!(none, "[]\n");
    }

    #[tokio::test]
    async fn a_table_of_several_pages_has_its_headings_once() {
        let (out, ..) = listed(&store().await, &[], 9).await;
        assert_eq!(out.lines().count(), 5001);
        assert!(out.matches("available").count() == 1);
    }

    #[tokio::test]
    async fn list_stops_reading_when_pipe_closes() {
        let store = store().await;
        for words in [&["--json"][..], &[]] {
            let (out, is_more, requested) = listed(&store, words, 1).await;
            assert_eq!((requested, is_more), (vec![PAGE; 2], false), "{words:?}");
            assert!(out.contains("user:0998") && !out.contains("user:1001"));
        }
    }
}
