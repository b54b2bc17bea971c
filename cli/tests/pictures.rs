//! The pictures of the documentation have roles, titles and descriptions.

use std::path::Path;

use anyhow::{Context, ensure};

/// Screen readers read the alternative text of a page, and the title and the description of a picture by itself.
#[test]
fn pictures_have_alternative_text_title_and_description() -> anyhow::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut shown = 0;
    let pages = std::fs::read_dir(&docs)?.map(|page| page.map(|page| page.path()));
    for page in pages.chain([Ok(docs.join("../README.md"))]) {
        let page = page?;
        if page.extension().is_none_or(|end| end != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&page)?;
        for image in text.split("![").skip(1) {
            let (alternative, rest) = image.split_once("](").context("an image")?;
            let file = rest.split(')').next().unwrap_or_default();
            let is_sentence = alternative.split_whitespace().count() >= 10 && alternative.ends_with('.');
            ensure!(is_sentence, "{}: '{alternative}' does not say what {file} shows", page.display());
            if file.starts_with("screenshots/") {
                continue;
            }
            let svg = std::fs::read_to_string(page.with_file_name(file))?;
            ensure!(svg.starts_with("<svg role=\"img\" "), "{file} has no role");
            for element in ["title", "desc"] {
                let text = svg.split_once(&format!("<{element}>")).and_then(|(_, rest)| rest.split_once("</"));
                ensure!(text.is_some_and(|(text, _)| text.split_whitespace().count() >= 3), "{file} has no {element}");
            }
            shown += 1;
        }
    }
    let files = |directory: &str| Ok::<_, std::io::Error>(std::fs::read_dir(docs.join(directory))?.count());
    // Each chart has its results beside it.
    ensure!(shown == files("pictures")? + files("charts")? / 2, "{shown} pictures are shown");
    Ok(())
}
