import t, { type Test } from 'tap'
import { DONE, say } from './chat-server.ts'
import { corral, newHome } from './command.ts'
import { localModel, planReply, runningModel, shownModel } from './records.ts'
import { event, refuse, scriptedServer } from './scripted-server.ts'
import { CTRL_C, CTRL_D, ENTER, onTerminal } from './terminal.ts'

const MODEL = 'me/far'

/** A server that has `me/far` after it was pulled. */
async function pullingServer(
  t: Test,
  plan: { disk?: boolean; memory?: boolean; here?: string[]; several?: boolean } = {}
) {
  let here = false
  const room = (fits = true) => ({ required: 6e8, available: fits ? 9e9 : 1e8, fits })
  const server = await scriptedServer(t, {
    'GET /api/tags': reply => reply.end(JSON.stringify({ models: (plan.here ?? []).map(localModel) })),
    'GET /api/ps': reply => reply.end(JSON.stringify({ models: [runningModel(MODEL)] })),
    'POST /api/show'(reply, { model }) {
      if (here || plan.here) reply.end(JSON.stringify(shownModel(String(model))))
      else refuse(reply, 404, 'model_not_found', `There is no model "${model}" here.`)
    },
    'POST /api/load'(reply, { model }) {
      if (here || plan.here) reply.end(event({ status: 'ready' }))
      else refuse(reply, 404, 'model_not_found', `There is no model "${model}" here.`)
    },
    'POST /api/pull'(reply, { model, dry_run }) {
      if (plan.several && model === MODEL) {
        const choices = ['small', 'large'].map(label => ({ label, size: 6e8, model: `hf:${MODEL}:${label}` }))
        return refuse(reply, 400, 'invalid_request', `${MODEL} has 2 models: small, large.`, { choices })
      }
      if (!dry_run) {
        here = true
        return reply.end(event({ status: `pulling ${MODEL}`, model: MODEL, size: 6e8 }) + event({ status: 'success' }))
      }
      reply.end(JSON.stringify({ ...planReply(MODEL), memory: room(plan.memory), disk: room(plan.disk) }))
    },
    'POST /api/chat': reply => reply.end(say('hello from far') + DONE)
  })
  return { ...server, pulls: () => server.bodies('POST /api/pull').filter(({ dry_run }) => !dry_run).length }
}

t.test('run pulls a missing model in scripts only with --yes', async t => {
  const server = await pullingServer(t)
  const home = newHome(t)
  t.match(await corral(['run', MODEL, 'Hi', ...server.flags], { home }), {
    code: 4,
    stdout: '',
    stderr: /no model "me\/far" here\. Get it with: corral pull me\/far\. Add --yes/
  })
  const bare = await corral(['run', 'llama3.2', 'Hi', ...server.flags], { home })
  t.match(bare, { code: 4, stderr: /no model "llama3\.2" here\.\n$/ }, 'a name that no hub has is not offered')
  t.equal(server.pulls(), 0)
  const ran = await corral(['run', MODEL, 'Hi', '--yes', ...server.flags], { home })
  t.match(ran, { code: 0, stdout: 'hello from far\n', stderr: /pulling me\/far/ })
  t.notMatch(ran.stderr, /corral run/, 'the command just typed is not suggested')
  t.equal(server.pulls(), 1)
})

t.test('run shows what would be pulled at a terminal and asks', async t => {
  for (const [typed, code, pulled] of [
    [ENTER, 0, 1],
    [`y${ENTER}`, 0, 1],
    [`n${ENTER}`, 4, 0],
    [CTRL_C, 130, 0]
  ] as const) {
    const server = await pullingServer(t)
    const terminal = onTerminal(t, ['run', MODEL, ...server.flags], newHome(t), { columns: 40 })
    await terminal.sees(/size +600 MB.*chosen +It is the best.*hub\.example.*Pull it now\? \[Y\/n\]/s)
    await terminal.press(typed)
    if (pulled) {
      await terminal.sees('>>> ')
      await terminal.press(`Hi${ENTER}`, /hello from far.*>>> /s)
      await terminal.press(CTRL_D)
    }
    t.equal(await terminal.ended(), code, JSON.stringify(typed))
    t.equal(server.pulls(), pulled)
  }
  const tight = await pullingServer(t, { memory: false })
  let terminal = onTerminal(t, ['run', MODEL, 'Hi', ...tight.flags], newHome(t))
  await terminal.sees(/memory .*not enough.*\[y\/N\]/s)
  await terminal.press(ENTER)
  t.equal(await terminal.ended(), 4, 'a model that does not fit is not pulled by Enter alone')
  const full = await pullingServer(t, { disk: false })
  terminal = onTerminal(t, ['run', MODEL, 'Hi', ...full.flags], newHome(t))
  await terminal.sees('not enough disk space')
  t.equal(await terminal.ended(), 1)
})

t.test('run offers the local models if none is named', async t => {
  const server = await pullingServer(t, { here: ['me/one', 'me/two'] })
  const home = newHome(t)
  const terminal = onTerminal(t, ['run', ...server.flags], home, { columns: 40 })
  await terminal.sees(/Which model.*me\/one.*me\/two/s)
  await terminal.press('\x1b[B', /me\/two/)
  await terminal.press(ENTER, /Chatting with me\/two/)
  await terminal.press(`Hi${ENTER}`, /hello from far.*>>> /s)
  t.equal(server.bodies('POST /api/chat')[0]!.model, 'me/two')
  t.equal(await terminal.leave(), 0)
  const left = onTerminal(t, ['run', ...server.flags], home)
  await left.sees('Which model')
  await left.press(CTRL_C)
  t.equal(await left.ended(), 130)
  const none = onTerminal(t, ['run', ...(await pullingServer(t)).flags], home)
  await none.sees(/has no chat model.*corral pull/s)
  t.equal(await none.ended(), 4)
  t.match(await corral(['run', ...server.flags], { home, input: 'Hi' }), { code: 2, stderr: /No model was given/ })
})

t.test('run and pull ask which of several models is meant, and fail without a terminal', async t => {
  for (const args of [
    ['run', MODEL],
    ['pull', MODEL]
  ]) {
    const server = await pullingServer(t, { several: true })
    const home = newHome(t)
    const terminal = onTerminal(t, [...args, ...server.flags], home, { columns: 80 })
    await terminal.sees(/Several models match me\/far\. Which one\?.*small.*large/s)
    await terminal.press('\x1b[B')
    await terminal.press(ENTER)
    if (args[0] === 'run') {
      await terminal.sees('Pull it now?')
      await terminal.press(ENTER, '>>> ')
      await terminal.press(CTRL_D)
    }
    t.equal(await terminal.ended(), 0)
    t.equal(server.bodies('POST /api/pull').at(-1)!.model, 'hf:me/far:large')
    if (args[0] === 'pull') {
      const left = onTerminal(t, [...args, ...server.flags], home)
      await left.sees('Which one?')
      await left.press(CTRL_C)
      t.equal(await left.ended(), 130)
      const script = await corral([...args, ...server.flags], { home })
      t.match(script, { code: 2, stderr: /has 2 models: small, large/ })
    }
  }
})
