-- A row a plan: the quota of every bucket that follows it. A changed row rules from the next request on; tokens that
-- are there stay, up to the new capacity.
--
--   insert into tollgate.token_plans (name, capacity, refill_seconds) values ('free', 10, 1);
--   update tollgate.token_plans set capacity = 1000, refill_seconds = 60 where name = 'free';
--
-- mode: see token_mode. Of a plan, a key's override and token_mode, the nearest to the key that says one rules.
create table tollgate.token_plans (
  name           text collate "C" primary key,                   -- 1 to 255 bytes
  capacity       numeric not null,                               -- tokens, a whole number; a bigint would round in silence
  refill_seconds numeric(19, 9) not null,                        -- from empty to full
  refill         text collate "C" not null default 'continuous', -- as in token_buckets
  mode           text collate "C",                               -- null: what token_mode says
  mode_reason    text,
  mode_until     timestamptz                                     -- null: until it is changed
);

revoke all on tollgate.token_plans from public;

-- What holds for every key, unless its plan or an override says otherwise. One row; without it the mode is 'enforce'.
--
--   update tollgate.token_mode set mode = 'shadow', reason = 'incident 42', until = now() + interval '2 hours'
--    where one = true;
--
-- 'enforce' limits; 'shadow' takes tokens, and lets requests pass that find none, without a wait; 'off' lets everything
-- pass and touches no bucket; 'block' denies everything.
create table tollgate.token_mode (
  mode   text collate "C" not null default 'enforce',
  reason text,
  until  timestamptz,                                            -- null: until it is changed
  one    boolean primary key default true check (one)
);

insert into tollgate.token_mode default values on conflict do nothing;

revoke all on tollgate.token_mode from public;

-- What holds for one key instead of its own terms and mode, for a time, and why.
--
--   insert into tollgate.token_overrides (id, capacity, refill_seconds, reason, expires_at)
--   values ('user:42', 1000, 60, 'load test, ticket 7', now() + interval '1 day');
create table tollgate.token_overrides (
  id             text collate "C" primary key,                   -- the bucket; it need not exist yet
  capacity       numeric,                                        -- null: the terms stay, only the mode is another
  refill_seconds numeric(19, 9),
  refill         text collate "C" not null default 'continuous', -- as in token_buckets
  mode           text collate "C",                               -- null: what the plan or token_mode says
  reason         text not null,
  expires_at     timestamptz                                     -- null: until it is deleted; once past, it rules nothing
);

revoke all on tollgate.token_overrides from public;

-- rule_checks_v1: the trigger that refuses a plan, a mode or an override that can never be.
create function tollgate.rule_checks_v1() returns trigger
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_name  text;
  v_error text;
begin
  v_error := case when new.mode not in ('enforce', 'shadow', 'off', 'block')
    then format('mode is %L: give ''enforce'', ''shadow'', ''off'' or ''block''', new.mode) end;
  if tg_table_name = 'token_plans' then
    v_name := 'plan ' || quote_nullable(left(new.name, 255));
    v_error := coalesce(v_error, case
      when (octet_length(new.name) between 1 and 255) is not true
        then format('its name has %s bytes: give 1 to 255', coalesce(octet_length(new.name), 0))
      when left(new.name, 1) = chr(1) then 'its name begins with U+0001: put something before it' end);
    perform tollgate.terms_v1(v_name, new.capacity, new.refill_seconds, new.refill);
  elsif tg_table_name = 'token_overrides' then
    v_name := 'override of ' || quote_nullable(left(new.id, 255));
    v_error := coalesce(v_error, case
      when (octet_length(new.id) between 1 and 255) is not true
        then format('its id has %s bytes: give 1 to 255', coalesce(octet_length(new.id), 0))
      when left(new.id, 1) = chr(1) then 'its id begins with U+0001: put something before it'
      when (new.capacity is null) <> (new.refill_seconds is null)
        then 'give both capacity and refill_seconds, or neither'
      when new.capacity is null and new.mode is null
        then 'it changes nothing: give capacity and refill_seconds, or a mode'
    end);
    if v_error is null and new.capacity is not null then
      perform tollgate.terms_v1(v_name, new.capacity, new.refill_seconds, new.refill);
    end if;
  else
    v_name := 'token_mode';
  end if;
  if v_error is not null then
    raise exception 'tollgate: % cannot be: %', v_name, v_error using errcode = 'check_violation';
  end if;
  return new;
end
$$;

revoke all on function tollgate.rule_checks_v1() from public;

create trigger plan_checks before insert or update on tollgate.token_plans
  for each row execute function tollgate.rule_checks_v1();
create trigger mode_checks before insert or update of mode on tollgate.token_mode
  for each row execute function tollgate.rule_checks_v1();
create trigger override_checks before insert or update on tollgate.token_overrides
  for each row execute function tollgate.rule_checks_v1();

-- Also for rows that a replication tool or a loader of test data writes with session_replication_role = replica.
alter table tollgate.token_plans enable always trigger plan_checks;
alter table tollgate.token_mode enable always trigger mode_checks;
alter table tollgate.token_overrides enable always trigger override_checks;
