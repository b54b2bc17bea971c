//! The checks of a database that Citus distributes over several nodes.

use sqlx::PgConnection;

use super::report::DoctorReport;
use crate::text::counted;

/// Checks the distribution, and returns whether there is one.
pub(super) async fn examine(connection: &mut PgConnection, report: &mut DoctorReport) -> Result<bool, sqlx::Error> {
    let has_citus: bool = sqlx::query_scalar("select to_regclass('pg_catalog.pg_dist_partition') is not null")
        .fetch_one(&mut *connection)
        .await?;
    if !has_citus {
        return Ok(false);
    }
    let (tables, left, shards, bytes): (i64, Vec<String>, i64, i64) = sqlx::query_as(
        "select count(p.logicalrelid),
                coalesce(array_agg(c.relname::text order by c.relname) filter (where p.logicalrelid is null), '{}'),
                (select count(*) from pg_dist_shard s where s.logicalrelid = to_regclass('tollgate.token_buckets')),
                coalesce(sum(citus_total_relation_size(p.logicalrelid, false)), 0)::bigint
           from pg_class c left join pg_dist_partition p on p.logicalrelid = c.oid
          where c.relnamespace = to_regnamespace('tollgate') and c.relkind = 'r'",
    )
    .fetch_one(&mut *connection)
    .await?;
    if tables == 0 {
        let found = "Citus is installed, and the tables are on this node alone";
        report.ok("distribution", found);
        return Ok(false);
    }
    let nodes: Vec<(String, bool, bool, i64)> = sqlx::query_as(
        "select n.nodename || ':' || n.nodeport, n.isactive, n.shouldhaveshards,
                (select count(*) from pg_dist_placement p join pg_dist_shard s using (shardid)
                  where p.groupid = n.groupid and s.logicalrelid = 'tollgate.token_buckets'::regclass)
           from pg_dist_node n where n.noderole = 'primary' order by 1",
    )
    .fetch_all(&mut *connection)
    .await?;
    let inactive: Vec<&str> = nodes.iter().filter(|(_, active, ..)| !active).map(|(name, ..)| name.as_str()).collect();
    if !inactive.is_empty() {
        let advice = format!("select citus_activate_node(…) for {}", inactive.join(", "));
        report.warn("nodes", format!("not active: {}", inactive.join(", ")), advice);
    }
    let empty: Vec<&str> = nodes
        .iter()
        .filter(|(_, active, takes, placed)| *active && *takes && *placed == 0)
        .map(|(name, ..)| name.as_str())
        .collect();
    if !empty.is_empty() {
        let found = format!("without any bucket: {}", empty.join(", "));
        report.warn("nodes", found, "select citus_rebalance_start()");
    }
    let (unreachable, open): (Vec<String>, Vec<String>) = sqlx::query_as(
        "select coalesce(array_agg(n.name) filter (where not r.success), '{}'),
                coalesce(array_agg(n.name) filter (where r.success and r.result <> '0'), '{}')
           from run_command_on_all_nodes(
                  'select count(*) from pg_proc p cross join aclexplode(coalesce(p.proacl, acldefault(''f'', p.proowner))) a
                    where p.pronamespace = to_regnamespace(''tollgate'') and a.grantee = 0') r
           join (select nodeid, nodename || ':' || nodeport as name from pg_dist_node) n using (nodeid)",
    )
    .fetch_one(&mut *connection)
    .await?;
    if !unreachable.is_empty() {
        let found = format!("no answer from {}", unreachable.join(", "));
        report.fail("nodes", found, "start the node, or name its standby: `select citus_update_node(…)`");
    }
    if !open.is_empty() {
        report.fail("privileges", format!("PUBLIC may execute every routine on {}", open.join(", ")), REMEDY);
    }
    let with_shards = nodes.iter().filter(|(.., placed)| *placed > 0).count();
    if left.is_empty() {
        report.ok("distribution", format!("{shards} shards on {}, {bytes} bytes", counted(with_shards, "node")));
    } else {
        report.fail("distribution", format!("not distributed: {}", left.join(", ")), REMEDY);
    }

    let delegated: i64 = sqlx::query_scalar(
        "select count(*) from pg_dist_object o join pg_proc p on p.oid = o.objid and o.classid = 'pg_proc'::regclass
          where p.pronamespace = 'tollgate'::regnamespace and o.distribution_argument_index is not null",
    )
    .fetch_one(connection)
    .await?;
    if delegated < DELEGATED {
        let found = format!("{delegated} of {DELEGATED} routines run on the node of their key, so that calls are slow");
        report.warn("delegation", found, REMEDY);
    }
    Ok(true)
}

const REMEDY: &str = "`tollgate migrate --distributed citus`";

/// The number of routines that the migration delegates.
const DELEGATED: i64 = 20;
