//! What the documentation says of the tests is so.

use std::path::Path;

use anyhow::{Context, ensure};

#[test]
fn each_test_that_a_document_names_exists() -> anyhow::Result<()> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut named = 0;
    for entry in std::fs::read_dir(repository.join("docs"))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        for (file, test) in text.split('`').filter_map(|code| code.split_once(".rs::")) {
            let file = format!("tests/{file}.rs");
            let source = std::fs::read_to_string(repository.join(&file))
                .with_context(|| format!("{} names {file}", path.display()))?;
            let found = source.contains(&format!("fn {test}(")) || source.contains(&format!("fn {test}<"));
            ensure!(found, "{} names {file}::{test}, which does not exist", path.display());
            named += 1;
        }
    }
    ensure!(named > 0, "no document names a test");
    Ok(())
}
