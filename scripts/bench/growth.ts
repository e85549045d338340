import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { FastifyReply, FastifyRequest } from 'fastify'
import pino from 'pino'
import { parseRequestedName } from '../../core/models/model-name.ts'
import { chooseNode } from '../../plugins/machines/cluster/placement/choose-node.ts'
import { PrefixMemory } from '../../plugins/machines/cluster/placement/prefix-memory.ts'
import { createCatalog } from '../../plugins/models/storage/catalog.ts'
import { ModelIndex } from '../../plugins/models/storage/manifest.ts'
import { createKey } from '../../plugins/people/security/key-file.ts'
import { openKeyStore } from '../../plugins/people/security/key-store.ts'
import { budgetsFor, localCounters } from '../../plugins/people/usage/budgets.ts'
import { taken, UsageRecords } from '../../plugins/people/usage/usage-records.ts'
import { createMetrics } from '../../plugins/watching/metrics/metrics.ts'
import {
  clusterOf,
  digestsOf,
  MODEL,
  member,
  model,
  talk
} from '../../test/plugins/machines/cluster/placement/support.ts'
import { machine } from '../../test/plugins/running/scheduler/support.ts'

/** A step of request handling, measured with this many items. */
export interface Operation {
  name: string
  /** The kind of item that is multiplied. */
  of: 'models' | 'keys' | 'requests' | 'members' | 'models and keys'
  /** Creates the items. @returns a function that performs the operation once and may be called repeatedly */
  prepare(count: number, folder: string): Promise<() => unknown>
}

const log = pino({ level: 'silent' })

function catalogWith(count: number) {
  const index = new ModelIndex()
  for (let at = 0; at < count; at++) {
    const owner = `owner-${at % 100}`
    const name = `model-${at}`
    const revision = 'f16-1'
    const variant = { label: 'F16', revision, format: 'gguf', origin: { kind: 'import', from: '/x' }, files: [] }
    const metadata = { capabilities: ['completion'], hasTemplate: false }
    const manifest = { version: 1, owner, name, default: 'F16', variants: [{ ...variant, metadata }] }
    index.put(`${owner}/${name}`, `/models/${owner}/${name}`, manifest as never)
  }
  return createCatalog(index, () => new Map(), log)
}

/** Creates a key file with this many keys, and returns one of the keys. */
async function keyAmong(count: number, folder: string) {
  const path = join(folder, 'keys.json')
  const { key } = await createKey(path, { name: 'key', role: 'user' })
  const file = JSON.parse(readFileSync(path, 'utf8'))
  const [entry] = file.keys
  const others = Array.from({ length: count - 1 }, (_, at) => ({
    ...entry,
    id: `${at}`.padStart(entry.id.length, '0'),
    name: `key-${at}`
  }))
  writeFileSync(path, JSON.stringify({ ...file, keys: [...others, entry] }))
  return { path, key }
}

const answered = (name: string, key: string) =>
  ({
    caller: { name: key },
    routeOptions: { config: {} },
    record: {
      use: { surface: 'api-openai', operation: 'chat', model: name },
      status: 200,
      began: 0,
      ended: 100,
      waitBegan: 1,
      leased: 2,
      firstPiece: 10,
      answered: 90,
      overhead: 1,
      tokens: { prompt: 10, cached: 0, completion: 10 }
    }
  }) as unknown as FastifyRequest

const NO_REPLY = {} as FastifyReply

/** A model with one slot and this many waiting requests from different clients. */
function crowd(count: number, clients: number) {
  const world = machine({ maxQueue: Number.POSITIVE_INFINITY, queuePerKey: Number.POSITIVE_INFINITY })
  world.request(0)
  world.send({ type: 'loaded', key: 'a', slots: 1, reserved: {} } as never)
  let last = 0
  const come = () => world.request(++last, 'a', { clientId: `client ${last % clients}` })
  while (last < count) come()
  let running = 0
  return () => {
    const effects = world.send({ type: 'leave', id: running, key: 'a' })
    const grant = effects.find(effect => effect.type === 'grant')
    if (!grant) throw new Error('nothing was granted')
    running = grant.id
    come()
  }
}

/** A request for a busy model, while many others wait for another model to be evicted. */
function crowdOutside(count: number) {
  const world = machine({ maxLoaded: 1, maxQueue: Number.POSITIVE_INFINITY, queuePerKey: Number.POSITIVE_INFINITY })
  world.request(0)
  world.send({ type: 'loaded', key: 'a', reserved: {} } as never)
  for (let id = 1; id <= count; id++) world.request(id, 'b', { clientId: `client ${id % 100}` })
  let last = count
  return () => {
    world.request(++last)
    world.send({ type: 'leave', id: last, key: 'a' })
  }
}

/** The steps of a request. Their cost must not depend on the number of items. */
export const OPERATIONS: Operation[] = [
  {
    name: 'find a model by its name',
    of: 'models',
    async prepare(count) {
      const catalog = catalogWith(count)
      const name = parseRequestedName('owner-7/model-7')
      return () => catalog.get(name)
    }
  },
  {
    name: 'find a model without its owner',
    of: 'models',
    async prepare(count) {
      const catalog = catalogWith(count)
      const name = parseRequestedName('model-7')
      return () => catalog.get(name)
    }
  },
  {
    name: 'find a key of the key file',
    of: 'keys',
    async prepare(count, folder) {
      const { path, key } = await keyAmong(count, folder)
      const store = await openKeyStore(path, [], log)
      store.close()
      return () => store.find(key)
    }
  },
  {
    name: 'find a key of the configuration',
    of: 'keys',
    async prepare(count, folder) {
      const keys = Array.from({ length: count }, (_, at) => `a long key of the configuration ${at}`)
      const store = await openKeyStore(join(folder, 'none.json'), keys, log)
      store.close()
      return () => store.find(keys.at(-1)!)
    }
  },
  {
    name: 'count against the limits of a key and its use',
    of: 'keys',
    async prepare(count, folder) {
      const records = new UsageRecords(folder, () => 30, log)
      const counters = localCounters(records)
      const one = taken({ requests: 1 })
      const use = async (at: number) => {
        const owner = `key:${at}`
        records.add({ owner, name: owner }, 'a/b', one)
        const limits = { requests_per_minute: 1e9, requests_per_day: 1e9 }
        for (const budget of budgetsFor({ owner }, 'a/b', limits, {})) await counters.add(budget, 1)
      }
      for (let at = 0; at < count; at++) await use(at)
      await records.flush()
      return () => use(count - 1)
    }
  },
  {
    name: 'a request ends, the next one starts, another arrives',
    of: 'requests',
    prepare: async count => crowd(count, 10)
  },
  {
    name: '… each from another client',
    of: 'requests',
    prepare: async count => crowd(count, Number.POSITIVE_INFINITY)
  },
  {
    name: 'a request while others wait for room for their model',
    of: 'requests',
    prepare: async count => crowdOutside(count)
  },
  {
    name: 'choose a member',
    of: 'members',
    async prepare(count) {
      const cluster = clusterOf(...Array.from({ length: count }, (_, at) => member(`member-${at}`, model())))
      const prefixes = new PrefixMemory()
      const wanted = { model: MODEL, prompt: digestsOf(talk('What is the capital of France?')) }
      return () => chooseNode(wanted, cluster, prefixes, 0)
    }
  },
  {
    name: 'count a request for /metrics',
    of: 'models and keys',
    prepare: async count => {
      const metrics = metricsWith(count)
      const request = answered('a/model-1', 'key-1')
      return () => metrics.observe(request, NO_REPLY)
    }
  },
  {
    name: 'write /metrics',
    of: 'models and keys',
    prepare: async count => {
      const metrics = metricsWith(count)
      return () => metrics.text()
    }
  }
]

function metricsWith(count: number) {
  const metrics = createMetrics(async () => ({
    engines: [],
    memory: { reserved: {}, budget: {} },
    pulls: [],
    received: 0,
    conversions: { running: 0, finished: 0, failed: 0 },
    stored: [],
    freeSpace: 0
  }))
  // With 10 items there are as many series as allowed, so that the limit is measured.
  for (let at = 0; at < Math.max(count, 1000); at++) metrics.observe(answered(`a/model-${at}`, `key-${at}`), NO_REPLY)
  return metrics
}

/**
 * Processor time of an operation with this many items in microseconds: the minimum of several rounds of about `budget`
 * ms.
 */
export async function measureTime(
  operation: Operation,
  count: number,
  budget: number,
  rounds: number
): Promise<number> {
  const folder = mkdtempSync(join(tmpdir(), 'corral-growth-'))
  try {
    const run = await operation.prepare(count, folder)
    const spent = async (times: number) => {
      const before = process.cpuUsage()
      for (let time = 0; time < times; time++) {
        const done = run()
        if (done instanceof Promise) await done
      }
      const { user, system } = process.cpuUsage(before)
      return user + system
    }
    let times = 1
    while ((await spent(times)) < budget * 200 && times < 1e6) times *= 2
    let least = Number.POSITIVE_INFINITY
    for (let round = 0; round < rounds; round++) least = Math.min(least, (await spent(times)) / times)
    return least
  } finally {
    rmSync(folder, { recursive: true, force: true, maxRetries: 3 })
  }
}
