import { closeSync, openSync, readdirSync, readFileSync, writeFileSync, writeSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { freePort } from '../../../../core/system/free-port.ts'
import { CAPITAL_ANSWER, CAPITAL_QUESTION, type Corral, DEMO, startCorral, until } from '../../../support/corral.ts'
import { refusedWith } from '../../../support/failure.ts'
import { ggufBytes } from '../../../support/gguf-writer.ts'
import { startHubEmulator } from '../../../support/hub-emulator/hub-emulator.ts'
import { listen } from '../../../support/listen.ts'
import { makeCertificate, whyNoCertificates } from '../../../support/make-certificate.ts'
import { noSmallDisk, smallDisk } from '../../../support/small-disk.ts'
import { filesBelow, MIB, NO_SETTINGS, pulls, sha256, storedDigests, TINY_CHAT } from '../../models/download/support.ts'
import { getNodes, startGateway, startReadyGateway, untilStates } from './support.ts'

// Copies between nodes, with all kinds of interruptions.

t.setTimeout(900_000)

const SIZE = readFileSync(TINY_CHAT).length
const DIGEST = sha256(readFileSync(TINY_CHAT))
const WITHOUT = 'storage:\n  demo_model: false\n'
/** Slow enough for interruptions halfway. */
const SLOW = `${WITHOUT}downloads:\n  bandwidth_limit: 300KB\n  pause_after: 1s\n`

const chat = { model: DEMO, messages: [CAPITAL_QUESTION], temperature: 0, max_tokens: 20 }
const ask = (gateway: Corral) => gateway.json('/v1/chat/completions', chat)
const contentOf = ({ body }: { body: any }) => body.choices?.[0].message.content ?? JSON.stringify(body)
const digestsAt = ({ home }: Corral) => storedDigests(join(home, 'models'), '.gguf')
const storedAt = (node: Corral) =>
  filesBelow(join(node.home, 'models')).filter(path => path.endsWith('.gguf') && !path.startsWith('.downloads'))

/** A server that keeps its address when it is restarted. */
const startAgain = async (t: Test, port: number, config: string, home?: string): Promise<Corral> =>
  await startCorral(t, { config, flags: ['--port', String(port)], ...(home !== undefined && { home }) })

/** A gateway that must copy the model to another node, because the nodes with the model accept no requests. */
async function setting(t: Test, holders: Corral[], lacking: Corral, cluster = '') {
  const members = [
    ...holders.map(({ url }, index) => ({ name: `holder-${index + 1}`, url })),
    { name: 'lacking', url: lacking.url }
  ]
  const gateway = await startGateway(t, members, { cluster })
  await untilStates(gateway, Object.fromEntries(members.map(({ name }) => [name, 'up'])))
  for (const { name } of members.slice(0, -1))
    await gateway.json('/api/cluster/drain', { member: name }, { local: true })
  return gateway
}

/** Waits until this many bytes have been copied. */
const copying = (node: Corral, bytes: number) =>
  until('it is being copied', async () => {
    const [pull] = await pulls(node)
    return pull?.completed > bytes && pull.completed < SIZE ? pull : undefined
  })

/** Starts a slow copy for a client that can leave, and waits until this many bytes have come. */
async function beginSlowCopy(t: Test, bytes: number) {
  const holder = await startCorral(t)
  const lacking = await startCorral(t, { config: SLOW })
  const gateway = await setting(t, [holder], lacking)
  const leaving = new AbortController()
  const first = gateway.send('/v1/chat/completions', { ...chat, stream: true }, { signal: leaving.signal })
  first.catch(() => {})
  await copying(lacking, bytes)
  return { lacking, gateway, leaving }
}

/** Changes a byte in the middle of a stored model, but not its size. */
function damage(node: Corral): void {
  const [path] = storedAt(node)
  const file = openSync(join(node.home, 'models', path!), 'r+')
  writeSync(file, Buffer.from([255, 1, 255]), 0, 3, SIZE - 5000)
  closeSync(file)
}

t.test('clients see the progress of a copy, and one that leaves does not end it for others', async t => {
  const { lacking, gateway, leaving } = await beginSlowCopy(t, 0)
  const second = ask(gateway)
  const loading = await until('it is shown', async () => (await gateway.json('/api/ps')).body.loading[0])
  t.match(loading, { name: DEMO, state: 'copying', member: 'lacking', status: /^copying .* from holder-1/ })
  await until('both wait', async () => (await gateway.json('/api/ps')).body.loading[0]?.queued === 2)
  t.match((await getNodes(gateway)).find(({ name }) => name === 'lacking').pulls, [
    { model: `${DEMO}:F16`, state: 'downloading', total: SIZE }
  ])
  leaving.abort()
  await until('one waits', async () => (await gateway.json('/api/ps')).body.loading[0]?.queued === 1)
  t.equal(contentOf(await second), CAPITAL_ANSWER)
  t.same(await digestsAt(lacking), [DIGEST])
})

t.test('a copy that nobody waits for is paused, and the next request resumes it', async t => {
  const { lacking, gateway, leaving } = await beginSlowCopy(t, 300_000)
  leaving.abort()
  const paused = await until('it is paused', async () => (await pulls(lacking)).find(({ state }) => state === 'paused'))
  t.same((await gateway.json('/api/ps')).body.loading, [])
  t.ok(paused.completed > 0 && paused.completed < SIZE)
  const second = ask(gateway)
  const going = await copying(lacking, 0)
  t.ok(going.completed >= paused.completed, 'with the bytes that were there')
  t.equal(contentOf(await second), CAPITAL_ANSWER)
  t.same(await digestsAt(lacking), [DIGEST])
})

t.test('another source takes over when one is killed, and the client gets an error when none is left', async t => {
  // More than the system buffers between two processes.
  const file = join(t.testdir(), 'large-F16.gguf')
  const weights = 24 * MIB
  const large = ggufBytes({
    metadata: { 'general.architecture': 'llama', 'llama.context_length': 4096, 'llama.embedding_length': 64 },
    tensors: [{ name: 'output.weight', shape: [weights] }]
  })
  writeFileSync(file, large)
  const holders = await Promise.all([startCorral(t), startCorral(t)])
  const model = 'me/large'
  for (const node of holders)
    t.match(await node.json('/api/import', { model, path: file, stream: false }), { status: 200 })
  const lacking = await startCorral(t, { config: SLOW.replace('300KB', '4MB') })
  const gateway = await setting(t, holders, lacking)
  // The file is not a real model, which is discovered only after the copy.
  const load = gateway.json('/api/load', { model })
  const going = (from: Corral, bytes: number) =>
    until(`it comes from ${from.url}`, async () =>
      (await pulls(lacking)).find(({ origin, completed }) => origin === from.url && completed > bytes)
    )
  const begun = await until('it is being copied', async () =>
    (await pulls(lacking)).find(({ completed }) => completed > 8 * MIB)
  )
  const killed = holders.findIndex(({ url }) => url === begun.origin)
  await holders[killed]!.end('SIGKILL')
  await going(holders[1 - killed]!, 8 * MIB)
  await holders[1 - killed]!.end('SIGKILL')
  const { status, body } = await load
  t.ok(status >= 500 && /^(copy_failed|engine_crashed)$/.test(body.code), `${status} ${JSON.stringify(body)}`)
  const partial = storedAt(lacking).filter(path => path.includes('large'))
  t.same(partial, [], 'no partial file becomes a model')
  t.ok((await pulls(lacking))[0].completed > 8 * MIB, 'the copied part is kept')
})

t.test('a killed member resumes its copy after a restart', async t => {
  const port = await freePort()
  const holder = await startCorral(t)
  const lacking = await startAgain(t, port, SLOW)
  const gateway = await setting(t, [holder], lacking)
  const answer = ask(gateway)
  await copying(lacking, 400_000)
  await lacking.end('SIGKILL')
  const { status, body } = await answer
  t.ok(status >= 500 && /^(copy_failed|engine_crashed)$/.test(body.error.code), `${status} ${JSON.stringify(body)}`)
  const back = await startAgain(t, port, SLOW, lacking.home)
  await untilStates(gateway, { lacking: 'up' })
  const [left] = await pulls(back)
  t.ok(left.completed > 0, JSON.stringify(left))
  t.same(storedAt(back), [])
  t.equal(contentOf(await ask(gateway)), CAPITAL_ANSWER)
  t.same(await digestsAt(back), [DIGEST])
})

t.test('a copy fails while the disk is full and works when there is room', { skip: noSmallDisk() }, async t => {
  const disk = smallDisk(t, '2m')
  const holder = await startCorral(t)
  const lacking = await startCorral(t, { config: WITHOUT, env: { CORRAL_MODELS: disk.folder } })
  const gateway = await setting(t, [holder], lacking)
  const { status, body } = await ask(gateway)
  t.match({ status, ...body.error }, { status: 507, code: 'insufficient_storage', message: /free|space|room/i })
  t.same(await storedDigests(disk.folder, '.gguf'), [])
  disk.resize('64m')
  t.equal(contentOf(await ask(gateway)), CAPITAL_ANSWER)
  t.same(await storedDigests(disk.folder, '.gguf'), [DIGEST])
})

t.test('copies over HTTPS need a trusted certificate', async t => {
  const missing = whyNoCertificates()
  if (missing) return t.comment(`skipped: ${missing}`)
  const { cert, key } = makeCertificate(30)
  const folder = t.testdir({ 'cert.pem': cert, 'key.pem': key })
  const authority = join(folder, 'cert.pem')
  const tls = `tls: { certificate: ${authority}, key: ${folder}/key.pem }\n`
  const trusting = `cluster:\n  ca: ${authority}\n`
  const holder = await startCorral(t, { config: tls, ca: cert })
  t.match(holder.url, /^https:/)
  const copied = async (config: string) => {
    const lacking = await startCorral(t, { config: `${tls}${WITHOUT}${config}`, ca: cert })
    const gateway = await setting(t, [holder], lacking, `  ca: ${authority}\n`)
    return { lacking, answer: await ask(gateway) }
  }
  const { lacking, answer } = await copied(trusting)
  t.equal(contentOf(answer), CAPITAL_ANSWER)
  t.same(await digestsAt(lacking), [DIGEST])
  const refused = await copied('')
  t.match(refused.answer, { status: 502, body: { error: { code: 'copy_failed', message: /its log says why/ } } })
  t.match(refused.lacking.log(), /certificate is not trusted here.*cluster\.ca/)
  t.same(storedAt(refused.lacking), [])
})

t.test('a damaged copy is refused', async t => {
  const holder = await startCorral(t)
  const lacking = await startCorral(t, { config: WITHOUT })
  damage(holder)
  const gateway = await setting(t, [holder], lacking)
  const { status, body } = await ask(gateway)
  t.match({ status, ...body.error }, { status: 502, code: 'copy_failed', message: /does not match its digest/ })
  t.same(storedAt(lacking), [])

  // A malicious server that names a file outside the model's folder.
  const offer = {
    ...{ owner: 'me', name: 'evil', label: 'F16', revision: 'r', format: 'gguf', digest: DIGEST, token: 'x' },
    origin: { kind: 'import', from: '/' },
    files: [{ path: '../../../../evil.gguf', size: 4, sha256: DIGEST, role: 'model' }]
  }
  const evil = createServer((_, reply) => reply.end(JSON.stringify(offer)))
  const url = `http://127.0.0.1:${await listen(t, evil)}`
  const refused = await lacking.json('/api/cluster/copy', { source: 'evil', url, ticket: 'x', digest: DIGEST })
  t.match(refused, { status: 502, body: { code: 'copy_failed' } })
  t.notMatch(refused.body.error, /evil\.gguf/, 'its content is not repeated')
  const left = readdirSync(lacking.home, { recursive: true }).filter(path => String(path).includes('evil'))
  t.same(left, [])
})

t.test('pulls of a gateway use files of its members, and the hub if these are missing or wrong', async t => {
  const path = 'tiny-F16.gguf'
  const hub = await startHubEmulator(t, {
    repositories: { 'test/tiny-GGUF': { files: { [path]: readFileSync(TINY_CHAT) } } }
  })
  const env = { ...NO_SETTINGS, HF_ENDPOINT: hub.url }
  const options = { env, config: WITHOUT }
  const [holder, other] = await Promise.all([startCorral(t, options), startCorral(t, options)])
  t.match(await holder.json('/api/pull', { model: 'test/tiny-GGUF', stream: false }), { status: 200 })
  const members = [
    { name: 'holder', url: holder.url },
    { name: 'other', url: other.url }
  ]
  const gateway = await startReadyGateway(t, members, { env })
  const served = hub.traffic.bytes(path)

  t.match(await gateway.json('/api/pull', { model: 'test/tiny-GGUF', stream: false }), { status: 200 })
  t.equal(hub.traffic.bytes(path), served, 'the hub sent none of it')
  t.same(await digestsAt(gateway), [DIGEST])
  const origin = { kind: 'hub', from: 'huggingface:test/tiny-GGUF' }
  t.match((await gateway.json('/api/show', { model: 'test/tiny-GGUF' })).body, { origin })
  await gateway.json('/api/delete', { model: 'test/tiny-GGUF' }, { method: 'DELETE' })

  const events = await gateway.events('/api/cluster/pull', { member: 'other', model: 'test/tiny-GGUF' })
  t.match(events[0], { status: 'pulling test/tiny-GGUF' })
  t.match(events.at(-1), { status: 'success' })
  t.equal(hub.traffic.bytes(path), served)
  t.same(await digestsAt(other), [DIGEST])
  t.match((await other.json('/api/show', { model: 'test/tiny-GGUF' })).body, { origin }, 'it names the hub')
  await other.json('/api/delete', { model: 'test/tiny-GGUF' }, { method: 'DELETE' })

  damage(holder)
  t.match(await gateway.json('/api/cluster/pull', { member: 'other', model: 'test/tiny-GGUF', stream: false }), {
    status: 200
  })
  t.same(await digestsAt(other), [DIGEST], 'the hub has the right one')
  await other.json('/api/delete', { model: 'test/tiny-GGUF' }, { method: 'DELETE' })
  t.match(await gateway.json('/api/pull', { model: 'test/tiny-GGUF', stream: false }), { status: 200 })
  t.same(await digestsAt(gateway), [DIGEST])
  t.ok(hub.traffic.bytes(path) > served)
  t.match(await gateway.json('/api/cluster/pull', { member: 'nobody', model: 'a/b' }), {
    body: { code: 'member_not_found' }
  })
  t.match(
    await gateway.json('/api/cluster/pull', { member: 'other', model: 'hf:test/none', stream: false }),
    refusedWith(404, 'repo_not_found')
  )
})
