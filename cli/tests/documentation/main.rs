//! The tests named by the documentation exist, its links resolve, and its Rust is compiled.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

mod page;

use page::Page;

#[test]
fn tests_named_by_documents_exist() -> anyhow::Result<()> {
    let mut named = 0;
    for path in documents()? {
        let text = std::fs::read_to_string(repository().join(&path))?;
        for (file, test) in text.split('`').filter_map(|code| code.split_once(".rs::")) {
            let sources = TESTS.map(|tests| std::fs::read_to_string(repository().join(format!("{tests}/{file}.rs"))));
            let source = sources.into_iter().find_map(Result::ok);
            let source = source.with_context(|| format!("{} names {file}.rs", path.display()))?;
            let found = source.contains(&format!("fn {test}(")) || source.contains(&format!("fn {test}<"));
            ensure!(found, "{} names {file}::{test}, which does not exist", path.display());
            named += 1;
        }
    }
    ensure!(named > 0, "no document names a test");
    Ok(())
}

#[test]
fn tests_named_by_invariants_exist() -> anyhow::Result<()> {
    let source = std::fs::read_to_string(repository().join("tests/invariants.rs"))?;
    let mut rows = 0;
    for row in source.lines().filter_map(|line| line.strip_prefix("//! | I")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [number, _, tests] = cells[..] else { anyhow::bail!("a row of another kind: {row}") };
        let paths: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        ensure!(!paths.is_empty(), "nothing shows I{number}");
        for path in paths.into_iter().flat_map(alternatives) {
            let (module, test) = path.rsplit_once("::").unwrap_or(("invariants", &path));
            let (begin, end) = test.split_once('*').map_or((test, "("), |(begin, _)| (begin, ""));
            let below = module.split_once("::").map_or(module, |(_, below)| below).replace("::", "/");
            let whole = module.replace("::", "/");
            let files =
                [whole.clone(), format!("support/{whole}"), format!("conformance/cases/{below}"), below.clone()];
            let files = files.iter().flat_map(|file| [format!("tests/{file}.rs"), format!("tests/{file}/main.rs")]);
            let mut found = files.filter_map(|file| std::fs::read_to_string(repository().join(file)).ok());
            let named = format!("fn {begin}");
            let shows = |text: String| text.split(&*named).skip(1).any(|rest| rest.starts_with(end));
            ensure!(found.any(shows), "I{number} is shown by {path}, which does not exist");
        }
        rows += 1;
    }
    ensure!(rows == 12, "{rows} rows");
    Ok(())
}

/// `a::{b, c}::d` is `a::b::d` and `a::c::d`.
fn alternatives(path: &str) -> Vec<String> {
    match path.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?))) {
        Some((before, (each, after))) => each.split(',').map(|one| format!("{before}{}{after}", one.trim())).collect(),
        None => vec![path.to_owned()],
    }
}

#[test]
fn links_within_the_repository_resolve() -> anyhow::Result<()> {
    let (mut links, mut broken) = (0, Vec::new());
    for path in documents()? {
        let page = Page::read(repository(), &path)?;
        for link in page.links() {
            links += 1;
            if let Some(why) = link.broken(repository())? {
                broken.push(format!("{}: {link}: {why}", path.display()));
            }
        }
    }
    ensure!(links > 0, "no document has a link");
    ensure!(broken.is_empty(), "{} of {links} links are broken:\n{}", broken.len(), broken.join("\n"));
    Ok(())
}

#[test]
fn index_links_every_page() -> anyhow::Result<()> {
    let mut reached = vec![repository().join("docs/README.md")];
    let mut next = 0;
    while let Some(path) = reached.get(next) {
        next += 1;
        for link in Page::read(repository(), path.strip_prefix(repository())?)?.links() {
            let page =
                link.file(repository()).filter(|file| file.exists() && file.starts_with(repository().join("docs")));
            let page = page.filter(|file| file.extension().is_some_and(|extension| extension == "md"));
            reached.extend(page.filter(|file| !reached.contains(file)));
        }
    }
    let lost: Vec<_> = pages("docs")?.into_iter().filter(|page| !reached.contains(&repository().join(page))).collect();
    ensure!(lost.is_empty(), "no link leads from docs/README.md to {lost:?}");
    Ok(())
}

/// Checks that each Rust example is part of a doc test, which `cargo test --doc` runs, or equals a file of `recipes/src`,
/// whose tests run it. Each of these files is shown.
#[test]
fn rust_in_documents_compiles() -> anyhow::Result<()> {
    let sources =
        ["http/src/lib.rs", "tests/support/pages.rs"].map(|source| std::fs::read_to_string(repository().join(source)));
    let sources = sources.into_iter().collect::<Result<String, _>>()?;
    let recipes = std::fs::read_dir(repository().join("recipes/src"))?.map(|entry| Ok(entry?.path()));
    let recipes = recipes.filter(|path| path.as_ref().is_ok_and(|path| !path.ends_with("lib.rs")));
    let recipes = recipes.map(|path| path.and_then(|path| Ok((std::fs::read_to_string(&path)?, path))));
    let recipes = recipes.collect::<std::io::Result<BTreeMap<String, PathBuf>>>()?;
    let (mut blocks, mut shown) = (0, BTreeSet::new());
    for path in documents()? {
        let text = std::fs::read_to_string(repository().join(&path))?;
        let included = ["../", "../../"].map(|up| format!("= include_str!(\"{up}{}\")]", path.display()));
        let is_included = included.iter().any(|included| sources.contains(included));
        for block in text.split("\n```rust").skip(1) {
            let (options, code) = block.split_once('\n').context("a block has lines")?;
            ensure!(!options.contains("ignore"), "{} has Rust that no test compiles", path.display());
            let code = code.split_once("```").context("a block ends")?.0;
            let recipe = recipes.get_key_value(code);
            ensure!(is_included || recipe.is_some(), "{} has Rust that no test compiles:\n{code}", path.display());
            shown.extend(recipe);
            blocks += 1;
        }
    }
    ensure!(blocks > 0, "no document shows Rust");
    let hidden: Vec<_> = recipes.iter().filter(|recipe| !shown.contains(recipe)).map(|(_, path)| path).collect();
    ensure!(!recipes.is_empty() && hidden.is_empty(), "no document shows {hidden:?}");
    Ok(())
}

/// The directories of tests, relative to the repository.
const TESTS: [&str; 3] = ["tests", "cli/tests", "http/tests"];

/// All documents, relative to the repository.
fn documents() -> anyhow::Result<Vec<PathBuf>> {
    let mut documents = Vec::new();
    for directory in ["docs", "design", "examples", "migrations"] {
        documents.extend(pages(directory)?);
    }
    for entry in std::fs::read_dir(repository())? {
        let name = PathBuf::from(entry?.file_name());
        if name.extension().is_some_and(|extension| extension == "md") {
            documents.push(name);
        }
    }
    Ok(documents)
}

/// The Markdown files below a directory, relative to the repository.
fn pages(directory: impl AsRef<Path>) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(repository().join(&directory))? {
        let entry = entry?;
        let path = directory.as_ref().join(entry.file_name());
        if entry.file_type()?.is_dir() {
            found.extend(pages(path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(found)
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the CLI is a directory of the repository")
}
