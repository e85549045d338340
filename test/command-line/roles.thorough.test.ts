import t from 'tap'
import { DEMO, startCorral } from '../support/corral.ts'
import { sample } from '../support/thorough.ts'
import { corral, newHome } from './command.ts'
import { tables } from './tables.ts'
import { onTerminal } from './terminal.ts'

t.test('commands need only the role for their work', async t => {
  const server = await startCorral(t)
  const { key } = JSON.parse((await corral(['key', 'create', 'ann', '--json'], { home: server.home })).stdout)
  const { port } = new URL(server.url)
  const home = newHome(t)
  const options = { home, env: { CORRAL_HOST: '127.0.0.1', CORRAL_PORT: port, CORRAL_API_KEYS: key } }

  for (const [command, shows = server.url] of sample(tables['commands for every user']!, 4)) {
    const args = command.split(' ')
    const { code, stdout, stderr } = await corral(args, options)
    t.match(
      { code, stderr, stdout },
      { code: 0, stderr: '', stdout: new RegExp(shows) },
      `a user may run corral ${command}`
    )
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
  await chat.press('Hi\r')
  await chat.press('\x04')
  t.equal(await chat.ended(), 0, 'a user may chat')

  for (const [role, command] of sample(tables['commands for other roles']!, 6)) {
    const args = command.split(' ')
    const { code, stderr } = await corral(args, options)
    const name = args.slice(0, /^(pulls|plugin|runtime|capture|key)$/.test(args[0]!) ? 2 : 1).join(' ')
    t.equal(code, 1, `corral ${name} is refused`)
    t.match(stderr, `error: "corral ${name}" needs the role "${role}", and the key "ann" has the role "user".`)
  }
})
