-- Ask the Presage bridge about each submitted job that carries features. Whatever fails, the job is
-- submitted as its user wrote it. Needs lua-socket for the Lua version that slurmctld uses (Debian:
-- lua-socket). Install it with `presage slurm files`, which sets the path of the socket.
--
-- A site that has a job_submit.lua keeps it. It reads this file, under another name, by `dofile` at
-- its beginning, and calls `presage.submit(job_desc, part_list)` at the end of slurm_job_submit.

local SOCKET = "@SOCKET@"
local DEADLINE_S = 0.08 -- of a whole exchange
local PAUSE_S = 10 -- without requests after the bridge failed
local MAX_TEXT = 120000
local NO_VAL, INFINITE = 4294967294, 4294967295
local NICE_OFFSET = 2147483648

presage = { paused_until = 0 }

local has_socket, socket = pcall(require, "socket")
local has_unix, unix = pcall(require, "socket.unix")

-- Text of a variable of the job, "" unless it consists of the expected characters.
local function variable(job_desc, name, pattern)
  local found, text = pcall(function() return job_desc.environment[name] end)
  if found and type(text) == "string" and #text <= MAX_TEXT and text:find(pattern) then
    return text
  end
  return ""
end

local function given(value)
  return type(value) == "number" and value < NO_VAL
end

-- Partitions in which the job may start; nil if one is not known.
local function partitions_of(job_desc, part_list)
  local found = {}
  if job_desc.partition == nil then
    for _, partition in pairs(part_list) do
      if partition.flag_default ~= 0 then found[1] = partition end
    end
  else
    for name in job_desc.partition:gmatch("[^,]+") do
      if part_list[name] == nil then return nil end
      found[#found + 1] = part_list[name]
    end
  end
  return #found > 0 and found or nil
end

-- Limit in minutes that the job has without Presage: "unlimited", a number, or nil if it is not
-- certain or above what a partition permits.
local function own_limit(job_desc, part_list)
  local partitions, minutes = partitions_of(job_desc, part_list), job_desc.time_limit
  if partitions == nil or minutes == INFINITE then return nil end
  if given(minutes) then
    for _, partition in ipairs(partitions) do
      if given(partition.max_time) and minutes > partition.max_time then return nil end
    end
    return minutes
  end
  if #partitions > 1 then return nil end
  for _, value in ipairs({ partitions[1].default_time, partitions[1].max_time }) do
    if given(value) then return value end
    if value == INFINITE then return "unlimited" end
  end
  return nil
end

-- All GRES of the job in one text, and whether they are those of each node.
local function gres(job_desc)
  local parts, per_node = {}, false
  for _, name in ipairs({ "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task" }) do
    local text = job_desc[name]
    if type(text) == "string" and text ~= "" then
      per_node = name == "tres_per_node"
      if name == "tres_per_socket" or name == "tres_per_task" then text = name .. ":" .. text end
      parts[#parts + 1] = text
    end
  end
  return table.concat(parts, ","), per_node
end

-- A count of the job, 1 where the user gave none (65534 is "not given" of 16-bit fields).
local function count(value)
  if given(value) and value ~= 65534 then return math.max(1, value) end
  return 1
end

local function request_for(job_desc, part_list, features, options)
  local lines = { "presage=1" }
  local function add(name, value)
    if value == true then value = "1" end
    if value then lines[#lines + 1] = name .. "=" .. tostring(value):gsub("[^ -~]", "?") end
  end
  add("own_limit", own_limit(job_desc, part_list))
  add("partition", job_desc.partition)
  add("has_time_min", given(job_desc.time_min))
  add("has_memory", given(job_desc.min_mem_per_node) or given(job_desc.min_mem_per_cpu)
    or (job_desc.mem_per_tres ~= nil and job_desc.mem_per_tres ~= ""))
  add("has_nice", given(job_desc.nice) and job_desc.nice ~= NICE_OFFSET)
  local requested, per_node = gres(job_desc)
  add("gres", requested)
  add("gres_per_node", per_node)
  add("nodes", count(job_desc.min_nodes))
  add("tasks", count(job_desc.num_tasks) * count(job_desc.ntasks_per_node))
  add("is_heterogeneous", given(job_desc.het_job_offset))
  add("options", options)
  add("features", features)
  return table.concat(lines, "\n") .. "\n\n"
end

-- Response of the bridge within the deadline; nil and the reason if there is none.
local function ask(request)
  local until_s = socket.gettime() + DEADLINE_S
  local connection = (unix.stream or unix)()
  local function left()
    local seconds = until_s - socket.gettime()
    connection:settimeout(math.max(seconds, 0.001), "t")
    return seconds > 0
  end
  left()
  local done, reason = connection:connect(SOCKET)
  local sent = 0
  while done and sent < #request do
    if not left() then done, reason = nil, "timeout" break end
    local last
    last, reason = connection:send(request, sent + 1)
    if last == nil then done = nil else sent = last end
  end
  local lines = {}
  while done do
    if not left() then done, reason = nil, "timeout" break end
    local line
    line, reason = connection:receive("*l")
    if line == nil or #lines > 20 or #line > 1000 then done = nil break end
    if line == "" then break end
    lines[#lines + 1] = line
  end
  connection:close()
  if not done then return nil, reason or "invalid response" end
  return lines
end

local function whole(text, least, most)
  local value = text ~= nil and text:find("^%d%d?%d?%d?%d?%d?%d?%d?%d?$") and tonumber(text)
  if value and value >= least and value <= most then return value end
  return nil
end

-- Values of a response; nil if any part of it is not as expected.
local function parse(lines, limit)
  local values = {}
  for _, line in ipairs(lines) do
    local name, value = line:match("^([a-z_]+)=(.*)$")
    if name == nil or values[name] ~= nil then return nil end
    values[name] = value
  end
  local most = limit == "unlimited" and 525600000 or tonumber(limit) or 0
  local checked = {
    time_limit = whole(values.time_limit, 1, most),
    memory_mib = whole(values.memory_mib, 1, 1e9),
    shards = whole(values.shards, 1, 10000),
    nice = whole(values.nice, 0, 1000000),
    note = values.note and #values.note <= 400 and values.note:match("^presage: [%w ._:=+-]+$"),
  }
  for name in pairs(values) do
    if name ~= "presage" and not checked[name] then return nil end
  end
  return values.presage == "1" and checked or nil
end

local function apply(job_desc, changes)
  if changes.time_limit then job_desc.time_limit = changes.time_limit end
  if changes.memory_mib then job_desc.min_mem_per_node = changes.memory_mib end
  if changes.shards then
    job_desc.tres_per_job, job_desc.tres_per_socket, job_desc.tres_per_task = "", "", ""
    job_desc.tres_per_node = "gres:shard:" .. changes.shards
  end
  if changes.nice then job_desc.nice = NICE_OFFSET + changes.nice end
  if changes.note then
    local before = job_desc.admin_comment
    local kept = type(before) == "string" and before ~= "" and before .. " " or ""
    job_desc.admin_comment = kept .. changes.note
  end
end

local function submit(job_desc, part_list)
  if job_desc.script == nil then return end -- srun and salloc have no environment here
  local comment = job_desc.admin_comment
  if type(comment) == "string" and comment:find("presage:", 1, true) then
    job_desc.admin_comment = comment:gsub("presage:", "presage_") -- only the bridge writes notes
  end
  local features = variable(job_desc, "SLURM_PRESAGE_JOB", "^[%w+/=]+$")
  if features == "" then return end
  local options = variable(job_desc, "SLURM_PRESAGE_OPTIONS", "^[a-z,-]+$")
  -- A job that submits jobs must not pass its own features on to them.
  job_desc.environment["SLURM_PRESAGE_JOB"] = ""
  job_desc.environment["SLURM_PRESAGE_OPTIONS"] = ""
  if not (has_socket and has_unix) then
    slurm.log_info("presage: lua-socket is not installed for %s", _VERSION)
    return
  end
  if os.time() < presage.paused_until then return end
  local begin_s = socket.gettime()
  local lines, reason = ask(request_for(job_desc, part_list, features, options))
  slurm.log_debug("presage: asked for %.2f ms", 1000 * (socket.gettime() - begin_s))
  if lines == nil then
    presage.paused_until = os.time() + PAUSE_S
    slurm.log_info("presage: no answer from %s (%s)", SOCKET, tostring(reason))
    return
  end
  local changes = parse(lines, own_limit(job_desc, part_list))
  if changes == nil then
    slurm.log_info("presage: invalid answer from %s", SOCKET)
    return
  end
  apply(job_desc, changes)
end

function presage.submit(job_desc, part_list)
  local done, reason = pcall(submit, job_desc, part_list)
  if not done then slurm.log_error("presage: %s", tostring(reason)) end
end

function slurm_job_submit(job_desc, part_list, _uid)
  presage.submit(job_desc, part_list)
  return slurm.SUCCESS
end

function slurm_job_modify(_job_desc, _job_rec, _part_list, _uid)
  return slurm.SUCCESS
end

return slurm.SUCCESS
