use sea_orm::DatabaseConnection;
use tollgate::{AnyStore, Error, Limiter, PgStore};

/// A limiter over the pool that sea-orm has opened.
pub fn limiter(
    database: &DatabaseConnection,
    rule: &str,
) -> Result<Limiter, Error> {
    let pool = database.get_postgres_connection_pool().clone();
    Limiter::new(AnyStore::new(PgStore::from(pool)), rule)
}
