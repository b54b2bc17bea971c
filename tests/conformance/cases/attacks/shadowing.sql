do $traps$
declare
  c_types     constant text[] :=
    '{integer,bigint,numeric,float8,text,name,boolean,timestamptz,interval,oid,bigint[],text[]}';
  c_operators constant text[] := '{+,-,*,/,%,=,<>,<,>,<=,>=,||,~,!~,&&,@>}';
  c_functions constant text[] :=
    '{array_length,array_append,string_agg,format,concat,left,right,substr,split_part,strpos,round,mod,div,set_config,
      has_schema_privilege,has_function_privilege,has_table_privilege,date_part,json_build_object}';
  c_body      constant text := $$ returns bigint language plpgsql as 'begin raise exception ''entered''; end'$$;
  v_name text;
  a      text;
  b      text;
begin
  perform set_config('search_path', 'pg_catalog', false);
  foreach a in array c_types loop
    foreach b in array c_types loop
      execute format('create function public.enter(%s, %s)', a, b) || c_body;
      foreach v_name in array c_operators loop
        execute format('create operator public.%s (leftarg=%s, rightarg=%s, function=public.enter)', v_name, a, b);
      end loop;
      foreach v_name in array c_functions loop
        execute format('create function public.%I(%s, %s)', v_name, a, b) || c_body;
      end loop;
    end loop;
  end loop;
  -- Of one argument: every function and aggregate whose name is not a type's.
  for v_name in
    select distinct p.proname from pg_proc p
     where p.pronamespace = 'pg_catalog'::regnamespace and p.proname ~ '^[a-z][a-z_]+$' and p.pronargs between 1 and 3
       and p.prorettype not in ('trigger'::regtype, 'internal'::regtype)
       and not exists (select from pg_type t where t.typname = p.proname)
  loop
    foreach a in array '{bigint,numeric,text,name,bigint[]}'::text[] loop
      execute format('create function public.%I(%s)', v_name, a) || c_body;
    end loop;
  end loop;
end
$traps$;
