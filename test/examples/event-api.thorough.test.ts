import t from 'tap'
import { definePlugin } from '../../core/plugins/plugin.ts'
import api from '../../examples/event-api/index.ts'
import { startTestCorral } from '../../testing/index.ts'

const request = { model: 'corral/tiny-chat', question: 'one two three' }

t.test("a stranger's API streams its own events", async t => {
  const filter = definePlugin({
    name: 'filter',
    api: 1,
    setup: context => ({
      on: {
        request({ body, setHeader }) {
          setHeader?.('x-filter', 'seen')
          if (JSON.stringify(body).includes('forbidden')) throw context.error('invalid_request', 'Not here.')
          if (JSON.stringify(body).includes('bad header')) setHeader?.('x-filter', 'a\nb')
        },
        event(event) {
          if (event.content === 'two ') event.content = '2 '
          if (event.content?.startsWith('stop')) throw context.error('over_limit', 'Enough.')
        }
      }
    })
  })
  const corral = await startTestCorral({ plugins: [api, filter] })
  t.teardown(() => corral.close())
  const ask = async (more: object = {}) => {
    const body = JSON.stringify({ ...request, ...more })
    const headers = { 'content-type': 'application/json' }
    const reply = await fetch(`${corral.url}/event-api/ask`, { method: 'POST', headers, body })
    return { reply, text: await reply.text() }
  }
  const whole = await ask()
  t.match(whole.reply.headers.get('content-type'), 'text/event-stream')
  t.equal(whole.reply.headers.get('x-filter'), 'seen', 'filters set headers of the reply')
  t.match(
    whole.text,
    /^event: text\ndata: \{"text":"one "\}\n\n[\s\S]*"2 "[\s\S]*event: end\ndata: \{"tokens":3\}\n\n$/
  )

  t.match(await ask({ question: 'forbidden' }), { reply: { status: 400 }, text: /Not here/ })
  t.match(await ask({ model: 'no/model' }), { reply: { status: 404 } })
  const failed = await ask({ question: 'begin stop here' })
  t.match(failed.text, /event: error\ndata: \{"code":"over_limit","message":"Enough\."\}\n\n$/)
  t.match(await ask({ question: 'bad header' }), {
    reply: { status: 500 },
    text: /filter.*failed in its hook/
  })
})
