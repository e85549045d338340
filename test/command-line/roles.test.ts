import t from 'tap'
import { DEMO, startCorral } from '../support/corral.ts'
import { corral, newHome } from './command.ts'
import { onTerminal } from './terminal.ts'

t.test('commands need only the role for their work', async t => {
  const server = await startCorral(t)
  const { key } = JSON.parse((await corral(['key', 'create', 'ann', '--json'], { home: server.home })).stdout)
  const { port } = new URL(server.url)
  const home = newHome(t)
  const options = { home, env: { CORRAL_HOST: '127.0.0.1', CORRAL_PORT: port, CORRAL_API_KEYS: key } }

  for (const [args, shows] of [
    [['list'], DEMO],
    [['list', '--json'], DEMO],
    [['show', DEMO], 'context length'],
    [['show', DEMO, '--template'], /tools/],
    [['run', DEMO, 'Hi'], /\S/],
    [['run', DEMO, 'Hi', '--num-ctx', '1024', '--temperature', '0', '--keep-alive', '10m'], /\S/],
    [['ps'], DEMO],
    [['ps', '--json'], DEMO],
    [['usage'], 'REQUESTS'],
    [['version'], server.url],
    [['__complete', 'show', 'corral/'], DEMO]
  ] as [string[], string | RegExp][]) {
    const { code, stdout, stderr } = await corral(args, options)
    t.match({ code, stderr, stdout }, { code: 0, stderr: '', stdout: shows }, `a user may run corral ${args.join(' ')}`)
  }
  const watched = await corral(['top'], { ...options, closeStdout: true })
  t.match(watched, { stderr: '' }, 'a user may run corral top')
  const missing = await corral(['run', 'no/model', 'Hi'], options)
  t.match(
    missing,
    { code: 4, stderr: /^error: There is no model "no\/model" here/ },
    'a missing model is reported as missing'
  )

  const chat = onTerminal(t, ['run', DEMO], home, options)
  await chat.sees('>>> ')
  chat.press('Hi\r')
  chat.press('\x04')
  t.equal(await chat.ended(), 0, 'a user may chat')

  for (const [role, args] of [
    ['operator', ['stop', DEMO]],
    ['operator', ['rm', DEMO]],
    ['operator', ['pull', 'a/b']],
    ['operator', ['pulls', 'pause', 'a/b']],
    ['operator', ['search', 'qwen']],
    ['operator', ['convert', DEMO, '--dtype', 'f16']],
    ['operator', ['plugin', 'list']],
    ['operator', ['runtime', 'list']],
    ['operator', ['drain', '--timeout', '0']],
    ['admin', ['logs', DEMO]],
    ['admin', ['audit']],
    ['admin', ['capture', 'list']],
    ['admin', ['key', 'list']],
    ['admin', ['log-level']],
    ['admin', ['reload']],
    ['admin', ['open', '--print']],
    ['admin', ['runtime', 'upgrade']]
  ] as [string, string[]][]) {
    const { code, stderr } = await corral(args, options)
    const name = args.slice(0, /^(pulls|plugin|runtime|capture|key)$/.test(args[0]!) ? 2 : 1).join(' ')
    const wanted = args[0] === 'drain' ? 'admin' : role
    t.equal(code, 1, `corral ${name} is refused`)
    t.match(stderr, `error: "corral ${name}" needs the role "${wanted}", and the key "ann" has the role "user".`)
  }
})
