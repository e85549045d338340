import { execFile } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { DEMO, until } from '../../../support/corral.ts'
import { rayPython, realRay } from '../../../support/ray-python.ts'
import { head, homeOf, LIMIT, startTrial } from './ray-trial.ts'

t.setTimeout(900_000)

/** Prints how many machines with the resource Ray's head has been asked for. */
const REQUESTED = `
import json, sys
from ray._raylet import GcsClient
client = GcsClient(address=sys.argv[1])
found = client.internal_kv_get(b"autoscaler_resource_request", None, timeout=5)
print(-1 if found is None else sum(each.get("corral", 0) for each in json.loads(found)))
`

async function requested(): Promise<number> {
  const token = join(homeOf('front'), 'cluster', 'token')
  const env = { ...process.env, RAY_AUTH_MODE: 'token', RAY_AUTH_TOKEN_PATH: token }
  const { stdout } = await promisify(execFile)(rayPython, ['-I', '-c', REQUESTED, head], { env })
  return Number(stdout.trim().split('\n').at(-1))
}

t.test('Ray is asked for machines when members lack room, and later for fewer', realRay(), async t => {
  const { gateway, status } = await startTrial(t)
  const file = join(gateway.home, 'config.yaml')
  const before = readFileSync(file, 'utf8')
  const configure = async (minimum: number) => {
    const cluster = `cluster:\n  replicas: {cooldown: 2s}\nmodels:\n  ${DEMO}:\n    replicas: {min: ${minimum}}\n`
    writeFileSync(file, `${before}\n${cluster}`)
    t.match(await gateway.json('/api/reload', {}, { local: true }), { status: 200 })
  }
  // A gateway that has the model itself does not ask its nodes for it.
  t.equal((await gateway.json('/api/delete', { model: DEMO }, { method: 'DELETE', local: true })).status, 200)
  await configure(3)
  const shown = async () => (await gateway.json('/api/cluster', undefined, { local: true })).body
  await until('both members have it', async () => (await shown()).replicas[0]?.loaded === 2, LIMIT)
  await until('Ray is asked for a third one', async () => (await requested()) === 3, LIMIT)
  const told = await shown()
  t.match(told.replicas, [{ wanted: 3, loaded: 2, min: 3, reason: /free memory/ }])
  t.match(told.sources, [{ name: 'ray', members: 2, wanted: 3 }])
  t.equal((await status()).wanted, 3)

  await configure(0)
  await until('fewer are enough', async () => (await requested()) < 3, LIMIT)
  t.equal((await gateway.json('/api/stop', { model: DEMO }, { local: true })).status, 200)
  await until('none is needed', async () => (await requested()) === 0, LIMIT)
  t.equal((await shown()).members.length, 2, 'machines that joined by hand stay')
})
