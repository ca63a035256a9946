-- Ends a batch whose files can be read.
-- KEYS batch items rows slices redo ready wakes leases fences ledger totals usage due bad again order parked batches talks
-- ARGV batch_id fence output_file ('' for none) error_file ('' for none) ttl_ms
-- Returns the state, or '' when another has been given the step.
local key, batch_id = batch_keys(), ARGV[1]
if redis.call('HGET', key.fences, batch_id .. '/-2') ~= ARGV[2] then return '' end
free_slice(key, batch_id, '-2')
if ARGV[3] ~= '' then redis.call('HSET', key.batch, 'output_file', ARGV[3]) end
if ARGV[4] ~= '' then redis.call('HSET', key.batch, 'error_file', ARGV[4]) end
local state = redis.call('HGET', key.batch, 'ends_as')
end_batch(key, batch_id, state, ARGV[5])
return state
