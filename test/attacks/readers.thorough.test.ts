import { connect, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { type Corral, DEMO, startCorral, until } from '../support/corral.ts'

const CONFIG = `limits: { reader_stall: 1s }
defaults: { num_ctx: 16384, num_parallel: 2 }`

/** Answers with events so large that the buffers of both sides are soon full. */
const large = {
  ...{ model: DEMO, messages: [{ role: 'user', content: 'Count to 30.' }], stream: true, temperature: 0 },
  ...{ logprobs: true, top_logprobs: 20, max_tokens: 15_000, options: { ignore_eos: true } }
}
const native = { ...large, options: { ignore_eos: true, max_tokens: 15_000, temperature: 0 } }

/** A client that sends a request and reads only on demand. */
function ask(t: Pick<Test, 'teardown'>, corral: Corral, path: string, body: object): Socket {
  const { hostname, port } = new URL(corral.url)
  const text = JSON.stringify(body)
  const socket = connect(Number(port), hostname)
  socket.on('error', () => {
    // The test observes how the connection ends.
  })
  socket.pause()
  socket.write(
    `POST ${path} HTTP/1.1\r\nhost: ${hostname}:${port}\r\ncontent-type: application/json\r\ncontent-length: ${text.length}\r\n\r\n${text}`
  )
  t.teardown(() => socket.destroy())
  return socket
}

/** Everything that a socket receives until its answer ends. */
async function rest(socket: Socket): Promise<string> {
  let text = ''
  socket.on('data', chunk => {
    text += chunk
  })
  socket.resume()
  await until('the answer ends', () => text.includes('\r\n0\r\n') || socket.destroyed)
  return text
}

const stalls = (corral: Corral) => corral.log().split('did not read its answer').length - 1

t.test('clients that read nothing lose their slots', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  const sockets = [0, 1].map(() => ask(t, corral, '/v1/chat/completions', large))
  // One client sends all the time, but sending does not count as reading.
  const sending = setInterval(() => sockets[1]!.write('GET / HTTP/1.1\r\nhost: localhost\r\n\r\n'), 100)
  t.teardown(() => clearInterval(sending))
  await until('both are answered', async () => (await corral.json('/api/ps')).body.models[0]?.running === 2)
  const answer = await corral.json('/api/chat', { ...native, stream: false, options: { max_tokens: 4 } })
  t.equal(answer.status, 200, 'a well-behaved client gets a slot')
  await until('both lost their slots', () => stalls(corral) === 2)
  clearInterval(sending)
  for (const socket of sockets) socket.destroy()

  const late = ask(t, corral, '/ollama/api/chat', native)
  await until('it lost its slot', () => stalls(corral) === 3)
  t.match(await rest(late), /reader_stalled/, 'a client that reads later finds the error at the end')
})

t.test('a slow reader is not disconnected', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  const socket = ask(t, corral, '/v1/chat/completions', { ...large, max_tokens: 1500 })
  let bytes = 0
  let text = ''
  socket.on('data', chunk => {
    bytes += chunk.length
    text = (text + chunk).slice(-2000)
    socket.pause()
    setTimeout(() => socket.resume(), 10)
  })
  socket.resume()
  await until('the answer is complete', () => text.includes('[DONE]') || socket.destroyed, 120_000)
  t.match(text, /\[DONE\]/)
  t.notMatch(corral.log(), /did not read its answer/)
  t.ok(bytes > 2 ** 20, 'the answer was larger than the buffers')
})

t.test('a whole answer that nobody reads is dropped after a while', async t => {
  const corral = await startCorral(t, { config: CONFIG })
  const socket = ask(t, corral, '/v1/chat/completions', { ...large, stream: false, max_tokens: 5500 })
  await until('the request has ended', () => /POST \/v1\/chat\/completions 200/.test(corral.log()))
  const text = await rest(socket)
  const length = Number(/content-length: (\d+)/i.exec(text)?.[1])
  t.ok(length > text.length, 'the connection ended before the whole answer was sent')
})
