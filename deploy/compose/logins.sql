-- Who logs in, after deploy/postgres/roles.sql. DEMO ONLY: the password is a fixed word.
CREATE ROLE gang_extender LOGIN PASSWORD 'gang' IN ROLE gx_writer;
