//! A Markdown file as GitHub renders it: headings and links.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use pulldown_cmark::{BrokenLink, CowStr, Event, LinkType, Options, Parser, Tag, TagEnd};

/// The anchors and links of a page.
pub(crate) struct Page {
    anchors: HashSet<String>,
    links: Vec<Link>,
}

/// A link's target as written on a page.
pub(crate) struct Link {
    page: PathBuf,
    target: String,
}

impl Page {
    /// Reads the page at a path below the repository.
    pub(crate) fn read(repository: &Path, path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(repository.join(path)).with_context(|| path.display().to_string())?;
        Ok(Self::parse(&text, path))
    }

    /// The links within the repository, without those to the web.
    pub(crate) fn links(&self) -> &[Link] {
        &self.links
    }

    fn parse(text: &str, path: &Path) -> Self {
        let (mut anchors, mut seen, mut links) = (HashSet::new(), HashMap::new(), Vec::new());
        let mut heading = None;
        // GitHub shows the brackets of an undefined reference. Skips brackets that are not links, such as lists of numbers.
        let undefined = |reference: BrokenLink<'_>| {
            let path = reference.link_type != LinkType::Shortcut || reference.reference.contains('/');
            path.then(|| (CowStr::from(format!("undefined/{}", reference.reference)), CowStr::from("")))
        };
        for event in Parser::new_with_broken_link_callback(text, Options::ENABLE_TABLES, Some(undefined)) {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    anchors.insert(anchor(&heading.take().unwrap_or_default(), &mut seen));
                }
                Event::Text(words) | Event::Code(words) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&words);
                    }
                }
                Event::Start(
                    Tag::Link { link_type, dest_url: target, .. } | Tag::Image { link_type, dest_url: target, .. },
                ) => {
                    let elsewhere = matches!(link_type, LinkType::Autolink | LinkType::Email) || target.contains(':');
                    if !elsewhere {
                        links.push(Link { page: path.to_owned(), target: target.into_string() });
                    }
                }
                _ => {}
            }
        }
        Self { anchors, links }
    }
}

impl Link {
    /// The reason why the link is broken, if it is.
    pub(crate) fn broken(&self, repository: &Path) -> anyhow::Result<Option<String>> {
        let Some(file) = self.file(repository) else {
            return Ok(Some("outside the repository".to_owned()));
        };
        if !file.exists() {
            return Ok(Some("no such file".to_owned()));
        }
        let Some((_, fragment)) = self.target.split_once('#') else {
            return Ok(None);
        };
        let page = Page::read(repository, &file)?;
        let missing = !page.anchors.contains(fragment);
        Ok(missing.then(|| format!("no heading {fragment} there")))
    }

    /// The target file. `None` if it is outside the repository.
    pub(crate) fn file(&self, repository: &Path) -> Option<PathBuf> {
        let target = self.target.split('#').next().unwrap_or_default();
        let base = if target.is_empty() { &*self.page } else { self.page.parent()? };
        let mut below = PathBuf::new();
        for component in base.join(target).components() {
            match component {
                Component::Normal(name) => below.push(name),
                Component::CurDir => {}
                Component::ParentDir => {
                    if !below.pop() {
                        return None;
                    }
                }
                Component::RootDir | Component::Prefix(_) => return None,
            }
        }
        Some(repository.join(below))
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.target)
    }
}

/// GitHub's anchor of a heading: lower case, hyphens between words, no punctuation, and a number if the anchor is taken.
fn anchor(heading: &str, seen: &mut HashMap<String, usize>) -> String {
    let slug: String = heading
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|letter| match letter {
            ' ' => Some('-'),
            '-' | '_' => Some(letter),
            _ => letter.is_alphanumeric().then_some(letter),
        })
        .collect();
    let before = seen.entry(slug.clone()).or_default();
    *before += 1;
    if *before == 1 { slug } else { format!("{slug}-{}", *before - 1) }
}

#[test]
fn anchors_match_those_of_github() {
    let text = "# What is `exact`, and why?\n\n## A_b - c\n\n## Twice\n\n## Twice\n";
    let page = Page::parse(text, Path::new("README.md"));
    let expected = ["what-is-exact-and-why", "a_b---c", "twice", "twice-1"];
    assert_eq!(page.anchors, expected.map(str::to_owned).into());
}

#[test]
fn broken_link_is_found() -> anyhow::Result<()> {
    let repository = super::repository();
    let broken = |text: &str| -> anyhow::Result<Vec<bool>> {
        let page = Page::parse(text, Path::new("docs/a page.md"));
        page.links().iter().map(|link| Ok(link.broken(repository)?.is_some())).collect()
    };
    assert_eq!(broken("[a](sql.md) [b](../README.md#licence) [c](https://example.com/sql.md)")?, [false, false]);
    assert_eq!(broken("[a](sq.md) [b](../README.md#nowhere) [c](../../README.md)")?, [true, true, true]);
    assert_eq!(broken("`[a](sq.md)`, [b]\n\n[b]: sq.md\n\n```text\n[c](sq.md)\n```\n")?, [true]);
    assert_eq!(broken("[a][b], [c/d.md], [1, 2]")?, [true, true]);
    Ok(())
}
