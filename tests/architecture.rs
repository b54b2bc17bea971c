//! Modules of the library import only from layers below their own. `design/architecture.md` draws the layers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// From the bottom to the top. Modules of one layer may import each other.
const LAYERS: [&[&str]; 5] =
    [&["concurrency", "model"], &["clock"], &["admin", "store"], &["layers"], &["limiter", "requester"]];

/// A module outside the layers: all layers report to it, and it names types of all layers.
const BESIDE: &str = "telemetry";

#[test]
fn modules_import_only_from_layers_below() -> anyhow::Result<()> {
    let mut upward = BTreeSet::new();
    let mut imports = 0;
    for path in sources(&source())? {
        let text = std::fs::read_to_string(&path)?;
        let module = module(&path)?;
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for imported in code.flat_map(|line| line.split("crate::").skip(1)).map(name) {
            imports += 1;
            if module == BESIDE || imported == BESIDE {
                continue;
            }
            if layer(&imported).is_none_or(|imported| layer(&module).is_some_and(|module| imported > module)) {
                upward.insert(format!("{}: crate::{imported}", path.display()));
            }
        }
    }
    ensure!(imports > 200, "only {imports} imports were found");
    ensure!(upward.is_empty(), "these import from above, or through the crate root:\n{upward:#?}");
    Ok(())
}

#[test]
fn every_module_has_a_layer() -> anyhow::Result<()> {
    for path in sources(&source())? {
        let module = module(&path)?;
        ensure!(module == "lib" || module == BESIDE || layer(&module).is_some(), "{module} is in no layer");
    }
    Ok(())
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

/// The identifier that a text begins with.
fn name(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect()
}

/// The first part of a file's module path.
fn module(path: &Path) -> anyhow::Result<String> {
    let first = path.strip_prefix(source())?.components().next().context("a file has a name")?;
    let first = first.as_os_str().to_str().context("names are ASCII")?;
    Ok(first.trim_end_matches(".rs").to_owned())
}

fn sources(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}
