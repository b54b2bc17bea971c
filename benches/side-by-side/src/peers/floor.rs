use sqlx::Pool;

use crate::engine::Engine;
use crate::peer::Peer;
use crate::scene::Scene;

/// One statement per decision, which decides nothing: the cost of the simplest use of the database.
pub(crate) struct Floor<E: Engine> {
    pool: Pool<E>,
    scene: Scene,
    writes: bool,
}

impl<E: Engine> Floor<E> {
    pub(crate) fn open(pool: Pool<E>, scene: &Scene, writes: bool) -> Self {
        Self { pool, scene: scene.clone(), writes }
    }
}

impl<E: Engine> Peer for Floor<E> {
    async fn ask(&self, key: u32) -> anyhow::Result<bool> {
        if self.writes {
            E::bare(&self.pool, &self.scene.names[key as usize]).await?;
        } else {
            let _: i32 = E::one(&self.pool).await?;
        }
        Ok(true)
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}
