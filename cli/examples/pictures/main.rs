//! Draws the pictures of `docs/choosing.md`: the same requests under one quota after another.
//!
//! ```text
//! cargo run -p tollgate-cli --example pictures                # into docs/pictures
//! cargo run -p tollgate-cli --example pictures -- elsewhere
//! ```
//!
//! The requests are decided by the crate itself, in memory, on a clock that the example sets. Nothing in a picture
//! depends on when or where it is drawn.

mod gallery;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "docs/pictures".to_owned());
    std::fs::create_dir_all(&directory)?;
    for picture in gallery::pictures()? {
        let path = format!("{directory}/{}.svg", picture.name);
        std::fs::write(&path, picture.svg().await?)?;
        println!("{path}");
    }
    Ok(())
}
