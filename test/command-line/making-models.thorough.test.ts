import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { each } from '../support/each.ts'
import { checkCommands, corral, newHome } from './command.ts'
import { event, refuse, scriptedServer } from './scripted-server.ts'
import { ENTER, onTerminal } from './terminal.ts'

const MB = 1e6

t.test('convert shows progress, failures and removal', async t => {
  const server = await scriptedServer(t, {
    'POST /api/convert': async (reply, _body, count) => {
      if (count === 2) return refuse(reply, 500, 'conversion_failed', 'The architecture is unknown.')
      reply.write(event({ status: 'preparing' }))
      for (const [step, status] of ['converting', 'quantizing'].entries()) {
        for (let completed = 0; completed <= 20; completed++) {
          reply.write(event({ status, step: step + 1, steps: 2, completed, total: 20 }))
          await sleep(50)
        }
      }
      reply.end(event({ status: 'success', model: 'me/st', dtype: 'q4_k_m', size: 5 * MB }))
    },
    'DELETE /api/convert': reply => reply.end('{"status":"deleted"}')
  })
  const home = newHome(t)
  const convert = ['convert', 'me/st', '--dtype', 'q4_k_m', ...server.flags]
  const terminal = onTerminal(t, convert, home)
  await terminal.sees(/converting \(step 1 of 2\) +█+░+ +\d+%/)
  await terminal.sees(/quantizing \(step 2 of 2\) +█+░+ +\d+%/)
  t.equal(await terminal.ended(), 0)
  t.match(await terminal.lines(), [/^Converted me\/st to q4_k_m \(5\.0 MB\)\./, 'it.'])
  t.match(await corral(convert, { home }), { code: 1, stdout: '', stderr: /error: The architecture is unknown\.\n$/ })
  t.match(await corral([...convert, '--remove'], { home }), {
    code: 0,
    stdout: '',
    stderr: /removed the q4_k_m conversion of me\/st/
  })
  t.same(server.bodies('POST /api/convert')[0], { model: 'me/st', dtype: 'q4_k_m', stream: true })
  t.same(server.bodies('DELETE /api/convert'), [{ model: 'me/st', dtype: 'q4_k_m' }])
})

t.test('convert and conversion install offer to install the converter', async t => {
  let isInstalled = false
  const server = await scriptedServer(t, {
    'POST /api/convert'(reply) {
      if (!isInstalled)
        return refuse(reply, 503, 'conversion_not_installed', 'The packages (about 2.5 GB) are missing.')
      reply.end(event({ status: 'success', model: 'me/st', dtype: 'f16', size: 5 * MB }))
    },
    'POST /api/conversion/install'(reply) {
      isInstalled = true
      reply.end(event({ status: 'installing torch', completed: 34, total: 100 }) + event({ status: 'success' }))
    }
  })
  const home = newHome(t)
  const convert = ['convert', 'me/st', '--dtype', 'f16', ...server.flags]
  t.match(await corral(convert, { home }), { code: 1, stderr: /about 2\.5 GB\) are missing/ }, 'no user to ask')
  let terminal = onTerminal(t, convert, home)
  await terminal.sees(/about 2\.5 GB.*Install them now\? \[Y\/n\]/s)
  await terminal.press(`n${ENTER}`)
  t.equal(await terminal.ended(), 1)
  t.equal(server.bodies('POST /api/conversion/install').length, 0)
  terminal = onTerminal(t, convert, home)
  await terminal.sees('Install them now?')
  await terminal.press(ENTER, /is installed.*Converted me\/st to f16/s)
  t.equal(await terminal.ended(), 0)
  t.match(await corral(['conversion', 'install', ...server.flags], { home }), { code: 0, stderr: /is installed/ })
})

t.test('import --from lists, imports some and imports all', async t => {
  const found = (name: string, more: object = {}) => ({
    found: `id of ${name}`,
    name,
    format: 'gguf',
    size: 5 * MB,
    path: '/x',
    present: false,
    ...more
  })
  const listed = {
    from: 'ollama',
    folder: '/home/me/.ollama/models',
    models: [
      found('a/one:Q8_0'),
      found('a/two:Q8_0'),
      found('a/bad', { problem: 'A file is missing.' }),
      found('a/old', { present: true })
    ]
  }
  const server = await scriptedServer(t, {
    'GET /api/import/found?from=ollama': reply => reply.end(JSON.stringify(listed)),
    'GET /api/import/found?from=lm-studio': reply =>
      reply.end(JSON.stringify({ from: 'lm-studio', folder: '/none', models: [] })),
    'POST /api/import': (reply, body) => {
      if (body.found === 'id of a/two:Q8_0')
        return reply.end(event({ error: 'Its digest is wrong.', errorCode: 400, code: 'invalid_request' }))
      reply.write(event({ status: 'copying one.gguf', completed: 2 * MB, total: 5 * MB }))
      reply.end(event({ status: 'success', model: { name: 'a/one', size: 5 * MB }, linked: true }))
    }
  })
  const home = newHome(t)
  const take = (...args: string[]) => corral(['import', '--from', ...args, ...server.flags], { home })
  const check = (table: string) => checkCommands(t, table, words => take(...words))
  await check('imports')
  t.same(JSON.parse((await take('ollama', '--list', '--json')).stdout), listed)
  t.same(server.bodies('POST /api/import'), [], 'nothing was imported so far')
  await check('some imports')
  t.same(each(server.bodies('POST /api/import'), 'found'), ['id of a/one:Q8_0', 'id of a/one:Q8_0', 'id of a/two:Q8_0'])
  t.same(server.bodies('POST /api/import')[0], { from: 'ollama', found: 'id of a/one:Q8_0', stream: true })
})
