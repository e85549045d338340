import { createLlamaServerEngine } from '../../../runtimes/llama-server/engine.ts'
import { buildOf, engineDeps, engineSpec } from './support.ts'

// A process that has an engine and waits to be killed. Arguments: llama-server, folder for records, action.
const [server = '', run = '', what = ''] = process.argv.slice(2)
const options = { ...engineSpec().options, num_ctx: 32768, num_parallel: 1 }

setInterval(() => {
  // Stays alive.
}, 1000)
const engine = await createLlamaServerEngine(buildOf(server), engineSpec({ options }), engineDeps(run), {})
if (what === 'busy') {
  const { body } = await engine.request({
    method: 'POST',
    path: '/completion',
    body: JSON.stringify({ prompt: 'Once', n_predict: -1, ignore_eos: true, stream: true }),
    signal: new AbortController().signal
  })
  await new Promise<void>(resolve => void body.consume(() => void resolve()))
}
console.log(`ready ${engine.pid}`)
