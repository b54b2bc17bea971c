//! A limit for each user and one for their tenant. A request takes from both buckets or from none, in one round trip.
//!
//! ```text
//! cargo run --example many_limits # on SQLite, in memory
//! cargo run --example many_limits --features postgres -- postgres://localhost/app # or on a database of yours; also mysql
//! ```
//!
//! ```text
//! $ cargo run --example many_limits
//! user:1: granted, 2 left of user:1
//! user:1: granted, 1 left of user:1
//! user:1: granted, 0 left of user:1
//! user:1: denied by user:1, again in 20 min
//! user:2: granted, 0 left of tenant:7
//! user:2: denied by tenant:7, again in 360 min
//! user:2 without a tenant: granted, 1 left
//! ```

use anyhow::Context;
use tollgate::{Quota, Rule, Store, Take};

use common::in_minutes;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let database = common::open().await?;
    let store = database.store();
    let of_user = Rule::try_from(Quota::per_hour(3))?;
    let of_tenant = Rule::try_from(Quota::per_day(4))?;
    let tenant = database.key("tenant:7")?;

    for name in ["user:1", "user:1", "user:1", "user:1", "user:2", "user:2"] {
        let user = Take::from(database.key(name)?).rule(of_user.clone());
        let decision = store.take_one(&user.and(tenant.clone(), of_tenant.clone())).await??;
        // The tenant's limit was added last, so it is the second one.
        let limit = [name, "tenant:7"][decision.limit_index()];
        if decision.is_granted() {
            let left = decision.remaining().context("the quota is unlimited")?;
            println!("{name}: granted, {left} left of {limit}");
        } else {
            println!("{name}: denied by {limit}, again {}", in_minutes(decision.retry_after()));
        }
    }

    // The request that the tenant's limit denied took nothing from the user's bucket.
    let alone = Take::from(database.key("user:2")?).rule(of_user);
    let left = store.take_one(&alone).await??.remaining().context("the quota is unlimited")?;
    println!("user:2 without a tenant: granted, {left} left");
    Ok(())
}
