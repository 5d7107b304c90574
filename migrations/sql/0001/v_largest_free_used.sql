-- Admissions that used the largest free domain between one measurement and the next. An admission is read once per
-- measurement and not once per domain, and its JSON is parsed once.
CREATE VIEW gx.v_largest_free_used AS
SELECT m.at,
       r.resource,
       r.level,
       r.domain,
       r.free,
       a.position,
       to_timestamp(a.at_us / 1e6::double precision) AS used_at,
       split_part(a.gang, '/', 1) AS namespace,
       a.gang,
       a.gang_uid,
       t.used,
       t.pods
FROM (
    -- ordered: a query in the order of measurements gets a page without computing all rows. Words: the names as
    -- they are written in JSON; a name that JSON could write in another form is the empty text, which matches every admission.
    SELECT v.at, v.as_of, v.next_as_of,
           array_agg(v.resource) AS resources,
           array_agg(v.level) AS levels,
           array_agg(v.domain) AS domains,
           array_agg(v.free) AS frees,
           array_agg(CASE WHEN v.domain ~ '^[A-Za-z0-9._-]*$' THEN '"' || v.domain || '"' ELSE '' END) AS words
    FROM gx.v_largest_free v
    GROUP BY v.at, v.position, v.as_of, v.next_as_of
    ORDER BY v.at
) m
CROSS JOIN LATERAL (
    -- OFFSET 0: found by position, after its measurement
    SELECT e.position, e.at_us, e.gang, e.gang_uid, e.payload
    FROM gx.event e
    WHERE e.type IN ('GangAdmitted', 'GangExtended') AND e.position > m.as_of AND e.position <= m.next_as_of
    OFFSET 0
) a
CROSS JOIN LATERAL (SELECT a.payload::text || '' AS body OFFSET 0) b  -- decompressed once, searched for each word
CROSS JOIN LATERAL (
    -- an admission whose text does not have the name cannot be there; the text search is cheaper than parsing JSON
    SELECT d.assignments, d.shapes, d.topology
    FROM json_to_record(a.payload) AS d (assignments jsonb, shapes jsonb, topology jsonb)
    WHERE EXISTS (SELECT FROM unnest(m.words) AS w (word) WHERE strpos(b.body, w.word) > 0)
    OFFSET 0
) d
CROSS JOIN LATERAL unnest(m.resources, m.levels, m.domains, m.frees, m.words)
    AS r (resource, level, domain, free, word)
CROSS JOIN LATERAL (
    SELECT sum((d.shapes -> coalesce((x.assignment ->> 'shape')::integer, 0) ->> r.resource)::bigint)::bigint AS used,
           count(*)::integer AS pods
    FROM jsonb_array_elements(d.assignments) AS x (assignment)
    WHERE CASE r.level
              WHEN 'node' THEN x.assignment ->> 'node'
              ELSE d.topology -> (x.assignment ->> 'node') ->> r.level
          END = r.domain
) t
WHERE strpos(b.body, r.word) > 0 AND t.used > 0
