import { signal } from '@preact/signals'
import { useMemo } from 'preact/hooks'
import type { ListedConversation } from '../../../../core/contracts/native-records.ts'
import { attempt, CopyButton, Note } from '../parts/controls.tsx'
import { formatSize } from '../parts/formats.ts'
import { Actions, Button } from '../parts/forms.tsx'
import { Card, Fault } from '../parts/layout.tsx'
import { useGradually, useReply } from '../parts/view-hooks.ts'
import { ask } from '../state/api.ts'
import type { Chat } from '../state/chat-format.ts'
import type { ChatDocument } from '../state/merge-chats.ts'
import { go, linkTo } from '../state/route.ts'
import { copyShared, shareChat, sharedMessages } from '../state/shared-chats.ts'
import { fill, texts } from '../texts/texts.ts'
import { MessageView } from './message-view.tsx'

const addressOf = (id: string) => new URL(linkTo('shared', id), location.href).href

/** Makes links to copies of a chat, and lists and revokes all links of the user. */
export function Links({ chat }: { chat: Chat }) {
  const t = texts.value
  const { reply, fault, change } = useReply<{ conversations: ListedConversation[] }>(
    'api/conversations?shared=true&limit=500'
  )
  return (
    <>
      <p class="quiet">{t.shareNote}</p>
      <Fault text={fault?.message} isAnnounced />
      <ul class="plain-list">
        {reply?.conversations.map(({ id, title, updated_at: at, size }) => (
          <Card
            key={id}
            title={title || t.untitled}
            facts={[new Date(at).toLocaleString(), formatSize(size)]}
            actions={
              <>
                <CopyButton text={() => addressOf(id)} label={t.copyLink} />
                <Button
                  kind="danger"
                  onClick={() => change(() => ask('DELETE', `api/conversations/${id}`))}
                  text={t.revoke}
                />
              </>
            }
          >
            <a href={addressOf(id)}>{addressOf(id)}</a>
          </Card>
        ))}
      </ul>
      <Actions>
        <Button kind="main" onClick={() => change(() => shareChat(chat))} text={t.makeLink} />
      </Actions>
    </>
  )
}

/** Messages rendered at first, and added in each following frame. */
const MESSAGES_A_FRAME = 6

/** A chat that somebody shares, for reading. */
export function SharedChat({ path: [id = ''] }: { path: string[] }) {
  const t = texts.value
  const { reply, fault } = useReply<ListedConversation & { document: ChatDocument }>(
    `api/shared/${encodeURIComponent(id)}`
  )
  const messages = useMemo(() => (reply ? sharedMessages(reply.document) : []).map(each => signal(each)), [reply])
  const count = useGradually(messages.length, MESSAGES_A_FRAME)
  if (fault) return <Note text={fault.status === 404 ? t.notShared : fault.message} />
  if (!reply) return <main class="view" aria-busy="true" />
  const { title, updated_at: at, document } = reply
  const copy = async () =>
    go([
      'chat',
      await copyShared(
        { ...document.chat, title },
        messages.map(each => each.peek())
      )
    ])
  return (
    <main class="view chat">
      <header class="view-head">
        <h1 class="chat-title">{title || t.untitled}</h1>
      </header>
      <section class="messages" tabIndex={0} aria-label={t.chat}>
        <div class="messages-column">
          {messages.slice(0, count).map((message, index) => (
            <MessageView key={index} message={message} />
          ))}
        </div>
      </section>
      <footer class="composer row">
        <p class="quiet grow">{fill(t.sharedOn, { time: new Date(at).toLocaleString() })}</p>
        <Button kind="main" onClick={() => attempt(copy)} text={t.continueCopy} />
      </footer>
    </main>
  )
}
