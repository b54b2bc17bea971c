//! Modules import only from layers below their own, and no files import each other in a circle.
//! `design/architecture.md` draws the layers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// The modules of the library, from the bottom to the top.
const LAYERS: [&str; 9] =
    ["concurrency", "model", "clock", "telemetry", "admin", "store", "layers", "requester", "limiter"];

#[test]
fn modules_import_only_from_layers_below() -> anyhow::Result<()> {
    let sources = Sources::read("src")?;
    let layer = |module: &str| LAYERS.iter().position(|layer| *layer == module);
    let (mut imports, mut upward) = (0, BTreeSet::new());
    for (file, paths) in &sources.imports {
        let Some(own) = file.first() else { continue };
        ensure!(layer(own).is_some(), "{own} is in no layer");
        for imported in paths.iter().filter_map(|path| path.first()).filter(|imported| *imported != own) {
            imports += 1;
            if layer(imported) >= layer(own) || layer(imported).is_none() {
                upward.insert(format!("{}: crate::{imported}", file.join("/")));
            }
        }
    }
    ensure!(imports > 200, "only {imports} imports were found");
    ensure!(upward.is_empty(), "these import from above, or through the crate root:\n{upward:#?}");
    Ok(())
}

#[test]
fn files_import_each_other_in_no_circle() -> anyhow::Result<()> {
    for source in ["src", "http/src", "cli/src"] {
        let graph = Sources::read(source)?.graph();
        ensure!(graph.values().map(BTreeSet::len).sum::<usize>() > 50, "{source} has more imports");
        let circle = in_circles(graph);
        ensure!(circle.is_empty(), "in {source}, these import each other in a circle:\n{circle:#?}");
    }
    Ok(())
}

/// `autotests` is off, because the tests lie beside the manifest: a file that it does not list would never be compiled.
#[test]
fn manifest_lists_every_test() -> anyhow::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(directory.join("Cargo.toml"))?;
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let main = if path.is_dir() { path.join("main.rs") } else { path };
        if main.extension().is_some_and(|extension| extension == "rs") && main.exists() {
            let name = main.strip_prefix(directory)?.display().to_string();
            ensure!(manifest.contains(&format!("path = \"{name}\"")), "tests/Cargo.toml has no [[test]] for {name}");
        }
    }
    Ok(())
}

/// A module by the parts of its path from the crate root, or a path into one.
type ModulePath = Vec<String>;

/// The modules of a crate that are files, and their imports from the same crate.
struct Sources {
    imports: BTreeMap<ModulePath, Vec<ModulePath>>,
    /// The paths that each module exports, by their names in the module.
    exports: HashMap<ModulePath, HashMap<String, ModulePath>>,
}

impl Sources {
    fn read(directory: &str) -> anyhow::Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(directory);
        let mut code = BTreeMap::new();
        for path in files(&root)? {
            let relative = path.strip_prefix(&root)?.with_extension("");
            let mut module: ModulePath =
                relative.iter().map(|part| part.to_str().map(str::to_owned)).collect::<Option<_>>().context("ASCII")?;
            if matches!(module[..], [ref root] if root == "lib" || root == "main") {
                module.clear();
            }
            code.insert(module, code_of(&std::fs::read_to_string(&path)?));
        }
        let mut sources = Self { imports: BTreeMap::new(), exports: HashMap::new() };
        for (module, text) in &code {
            let (mut imports, mut exports, mut body) = (Vec::new(), HashMap::new(), String::new());
            for (place, statement) in text.split(';').enumerate() {
                let Some((before, tree)) = statement.split_once("use ").filter(|(before, _)| is_before_use(before))
                else {
                    body.push_str(statement);
                    continue;
                };
                if place == 0 {
                    body.push_str(before);
                }
                for path in expand(tree) {
                    let (path, alias) =
                        path.split_once(" as ").map_or((&*path, None), |(path, alias)| (path, Some(alias)));
                    let Some(path) = absolute(module, path, &code) else { continue };
                    if before.contains("pub")
                        && let Some(name) = alias.map(str::to_owned).or_else(|| path.last().cloned())
                    {
                        exports.insert(name, path.clone());
                    }
                    imports.push(path);
                }
            }
            imports.extend(inline_paths(&body).filter_map(|path| absolute(module, path, &code)));
            sources.imports.insert(module.clone(), imports);
            sources.exports.insert(module.clone(), exports);
        }
        Ok(sources)
    }

    /// The files that each file imports from, apart from its own ancestors and descendants.
    fn graph(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let of = |(file, paths): (&ModulePath, &Vec<ModulePath>)| {
            let imported = paths.iter().filter_map(|path| self.resolve(path.clone()));
            let imported = imported.filter(|other| !other.starts_with(file) && !file.starts_with(other)).collect();
            (file.clone(), imported)
        };
        self.imports.iter().map(of).collect()
    }

    /// The file that defines what a path names.
    fn resolve(&self, mut path: ModulePath) -> Option<ModulePath> {
        for _ in 0..8 {
            let file =
                (0..=path.len()).rev().map(|len| path[..len].to_vec()).find(|file| self.imports.contains_key(file))?;
            let rest = &path[file.len()..];
            match rest.first().and_then(|name| self.exports[&file].get(name)) {
                Some(exported) => path = [&exported[..], &rest[1..]].concat(),
                None => return Some(file),
            }
        }
        None
    }
}

/// The code of a file, without comments and its unit tests.
fn code_of(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect()
}

/// Whether the text before `use` ends a statement or is the visibility of the import.
fn is_before_use(before: &str) -> bool {
    let before = before.trim_end();
    before.is_empty() || before.ends_with(['}', ']', ')', '{']) || before.ends_with("pub")
}

/// The single paths of an import: `a::{b, c::{d, e}}` has `a::b`, `a::c::d` and `a::c::e`.
fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((prefix, rest)) = tree.split_once('{') else { return vec![tree.to_owned()] };
    let inner = rest.trim_end().strip_suffix('}').unwrap_or(rest);
    let (mut depth, mut parts, mut begin) = (0, Vec::new(), 0);
    for (place, character) in inner.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inner[begin..place]);
                begin = place + 1;
            }
            _ => {}
        }
    }
    parts.push(&inner[begin..]);
    let parts = parts.into_iter().map(str::trim).filter(|part| !part.is_empty());
    parts.flat_map(expand).map(|part| format!("{prefix}{part}")).collect()
}

/// The paths in a text that begin at the crate root or at a parent.
fn inline_paths(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == ':';
    let paths = text.split(move |character| !is_part(character));
    paths.filter(|path| path.starts_with("crate::") || path.starts_with("super::"))
}

/// A path from the crate root, if it names something in this crate.
fn absolute(module: &ModulePath, path: &str, modules: &BTreeMap<ModulePath, String>) -> Option<ModulePath> {
    let mut parts: Vec<String> = path.split("::").map(|part| part.trim().to_owned()).collect();
    let mut base = module.clone();
    match &*parts[0] {
        "crate" => base.clear(),
        "self" => {}
        "super" => {
            while parts.first().is_some_and(|part| part == "super") {
                base.pop();
                parts.remove(0);
            }
            return Some([base, parts].concat());
        }
        child => {
            let child = [&base[..], &[child.to_owned()]].concat();
            return modules.contains_key(&child).then(|| [base, parts].concat());
        }
    }
    Some([&base[..], &parts[1..]].concat())
}

/// The files that can reach themselves: removes those that import from no other, or that no other imports, one by one.
fn in_circles(mut graph: BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<String> {
    loop {
        let imported: BTreeSet<ModulePath> = graph.values().flatten().cloned().collect();
        let before = graph.len();
        graph.retain(|file, imports| !imports.is_empty() && imported.contains(file));
        let left: BTreeSet<ModulePath> = graph.keys().cloned().collect();
        for imports in graph.values_mut() {
            imports.retain(|file| left.contains(file));
        }
        if graph.len() == before {
            let line = |(file, imports): (ModulePath, BTreeSet<ModulePath>)| {
                let imports: Vec<String> = imports.into_iter().map(|path| path.join("/")).collect();
                format!("{} imports {}", file.join("/"), imports.join(", "))
            };
            return graph.into_iter().map(line).collect();
        }
    }
}

fn files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}
