-- Delegates each routine for one key to the node that has the key. Citus then runs the whole routine there, in one round trip.
-- The call must be outside a transaction, its key a constant or a parameter, and no argument volatile. Other calls run on the
-- node that they reach, with a round trip for each statement of the routine.
--
-- A delegated routine waits for a lock for 4 s at most, because the caller's lock_timeout does not reach the node. The deadline
-- of a store is 5 s.
do $$
declare
  v_routine text;
begin
  foreach v_routine in array array[
    'tollgate.take_v1(text, bigint, bigint, bigint, bigint, numeric, text, text, uuid, bigint)',
    'tollgate.grant_v1(text, bigint, bigint, bigint, numeric, text, text)',
    'tollgate.take_equal_v1(text, bigint, bigint, bigint, numeric, text, text, bigint)',
    'tollgate.take_window_v1(text, bigint, bigint, bigint, bigint, bigint, bigint, uuid, bigint, boolean)',
    'tollgate.adjust_v1(text, uuid, text, bigint, bigint, bigint, bigint, bigint)',
    'tollgate.adjust_window_v1(text, uuid, text, bigint, bigint, bigint)',
    'tollgate.throttle_v1(text, bigint, bigint, bigint, numeric, text, text)',
    'tollgate.throttle(text, double precision, double precision, double precision, text)',
    'tollgate.request_token(text)',
    'tollgate.request_tokens(text, double precision, double precision, double precision, text, uuid)',
    'tollgate.request_tokens_v1(text, double precision, double precision, double precision, text, uuid)',
    'tollgate.request_tokens_in_window(text, double precision, double precision, double precision, double precision, '
      'double precision)',
    'tollgate.request_tokens_in_window_v1(text, double precision, double precision, double precision, double precision, '
      'double precision)',
    'tollgate.peek(text)',
    'tollgate.peek_window(text)',
    'tollgate.explain(text, text)',
    'tollgate.create_bucket(text, bigint, numeric, text)',
    'tollgate.create_bucket(text, double precision, double precision, text)',
    'tollgate.reset_bucket(text)',
    'tollgate.delete_bucket(text)']
  loop
    execute format('alter function %s set lock_timeout = ''4s''', v_routine);
    perform create_distributed_function(v_routine::regprocedure, 'p_id', colocate_with => 'tollgate.token_buckets');
  end loop;
end
$$;

-- A node gets a routine with the privileges that the coordinator grants, and keeps the default one of PUBLIC, which each routine
-- here is created with. On a node that is added later, all routines have it, until this runs again.
revoke execute on all functions in schema tollgate from public;
