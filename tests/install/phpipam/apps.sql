-- What tests use in a phpIPAM of their own: load it into the database after db/SCHEMA.sql.
-- The codes are those of crates/testkit/src/phpipam.
UPDATE settings SET api = 1;
INSERT INTO api (app_id, app_code, app_permissions, app_security, app_lock_type, app_lock_wait) VALUES
  ('cni', '0123456789abcdef0123456789abcdef', 3, 'ssl_code', 'File', 30),
  ('cni-unlocked', '0123456789abcdef0123456789unlock', 3, 'ssl_code', 'Disabled', 30),
  ('cni-brief', '0123456789abcdef01234567890brief', 3, 'ssl_code', 'File', 1),
  ('cni-read', '0123456789abcdef012345678900read', 1, 'ssl_code', 'File', 30),
  ('cni-crypt', '0123456789abcdef01234567890crypt', 3, 'crypt', 'File', 30);
ALTER TABLE ipaddresses ADD COLUMN cni_key VARCHAR(64) DEFAULT NULL;
ALTER TABLE ipaddresses ADD UNIQUE KEY cni_key_u (subnetId, cni_key);
