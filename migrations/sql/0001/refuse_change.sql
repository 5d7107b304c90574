-- The log is append-only for every role, its owner included.
CREATE FUNCTION gx.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = gx, pg_temp
AS $function$
BEGIN
    RAISE EXCEPTION 'gx.% is append-only: % refused', TG_TABLE_NAME, TG_OP USING ERRCODE = '55000';
END
$function$
