-- request_tokens_many: take tokens from several provisioned buckets in one call, each for itself.
--
-- Arguments: p_ids, p_tokens: which buckets, and how many tokens of each, in whole numbers below 2^53
-- Result:    a row a request, in the order given: id; outcome: 'granted', 'denied', or what take_v1 answers else;
--            remaining and retry_after_ms as in request_tokens_v1, null if undecided
-- Errors and locks: see take_many_v1.
create function tollgate.request_tokens_many(p_ids text[], p_tokens double precision[])
returns table (id text, outcome text, remaining bigint, retry_after_ms bigint)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  v_none constant bigint[] := array_fill(0::bigint, array[coalesce(cardinality(p_ids), 0)]);
  v_once constant bigint[] := array_fill(1::bigint, array[coalesce(cardinality(p_ids), 0)]);
begin
  if p_ids is null or p_tokens is null or cardinality(p_ids) <> cardinality(p_tokens)
     or array_position(p_ids, null) is not null or array_position(p_tokens, null) is not null
     or 1 > any (p_tokens) or 9007199254740992 <= any (p_tokens)
     or exists (select from unnest(p_tokens) x where x <> trunc(x)) then
    raise exception 'tollgate: request_tokens_many needs as many numbers of tokens, each a whole number of 1 or more below '
                    '2^53, as bucket ids'
      using errcode = 'invalid_parameter_value';
  end if;
  return query
    select p_ids[t.entry], (t.taken).outcome,
           case when (t.taken).outcome in ('granted', 'denied') then tollgate.taken_remaining_v1(t.taken) end,
           case when (t.taken).outcome = 'denied' and (t.taken).mode = 'block'
                then ((t.taken).acts_at - (t.taken).now + 999999) / 1000000
                when (t.taken).outcome in ('granted', 'denied')
                then tollgate.taken_until_v1(t.taken, p_tokens[t.entry]::bigint) end
      from tollgate.take_many_v1(p_ids, p_tokens::bigint[], v_none, v_none, null, null, null, null, null, null, v_once) a,
           lateral tollgate.answers_each_v1(a) t
     order by t.entry;
end
$$;

revoke all on function tollgate.request_tokens_many(text[], double precision[]) from public;
