//! The example draws the pictures in `docs/pictures`.

#[path = "../examples/pictures/gallery/mod.rs"]
mod gallery;

use std::path::Path;

#[tokio::test]
async fn pictures_match_the_code() -> anyhow::Result<()> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let text = std::fs::read_to_string(docs.join("choosing.md"))?;
    let pictures = gallery::pictures()?;
    for picture in &pictures {
        let file = format!("pictures/{}.svg", picture.name);
        assert!(text.contains(&file), "docs/choosing.md does not show {file}");
        let drawn = picture.svg().await?;
        let kept = std::fs::read_to_string(docs.join(&file))?;
        assert!(drawn == kept, "docs/{file} is another: cargo run -p tollgate-cli --example pictures");
    }
    // The `live` tests compare the pictures of the CLI.
    let others = std::fs::read_to_string(docs.join("cli.md"))?.matches("](pictures/").count();
    assert_eq!(
        std::fs::read_dir(docs.join("pictures"))?.count(),
        pictures.len() + others,
        "a picture that nothing draws"
    );
    Ok(())
}
