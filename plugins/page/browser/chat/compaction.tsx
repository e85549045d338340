import { useRef, useState } from 'preact/hooks'
import { attempt, IconButton } from '../parts/controls.tsx'
import { formatNumber } from '../parts/formats.ts'
import { Button } from '../parts/forms.tsx'
import { answer } from '../state/answering.ts'
import type { Message } from '../state/chat-format.ts'
import { editMessage } from '../state/chats.ts'
import { canCompact, compact } from '../state/model-texts.ts'
import { go } from '../state/route.ts'
import { fill, plural, texts } from '../texts/texts.ts'
import { Markdown } from './markdown-view.tsx'

/** Offers to replace older messages by a summary. @param share of the context that is used */
export function CompactOffer({ last, share }: { last: Message; share: number }) {
  const t = texts.value
  const [isHidden, setHidden] = useState(false)
  const [isBusy, setBusy] = useState(false)
  const running = useRef<AbortController | undefined>(undefined)
  if (isHidden || !canCompact(last.chat)) return null
  const start = async (isNew: boolean) => {
    const controller = new AbortController()
    running.current = controller
    setBusy(true)
    await attempt(async () => {
      try {
        const id = await compact(last.chat, isNew, controller.signal)
        if (isNew) go(['chat', id])
        else if (last.error) await answer(last.chat, last.parent!, last.model)
      } catch (error) {
        if (!controller.signal.aborted) throw error
      }
    })
    setBusy(false)
  }
  const percent = formatNumber(Math.min(100, 100 * share), 0, 'percent')
  return (
    <fieldset class="compact-offer" aria-label={t.compact}>
      <p>{isBusy ? t.compacting : fill(t.compactHint, { percent })}</p>
      {isBusy ? (
        <Button onClick={() => running.current?.abort()} text={t.stop} />
      ) : (
        <>
          <IconButton icon="close" label={t.close} onClick={() => setHidden(true)} />
          <Button onClick={() => start(false)} text={t.compact} />
          <Button onClick={() => start(true)} text={t.compactNew} />
        </>
      )}
    </fieldset>
  )
}

/** The summary that requests contain instead of earlier messages. @param count of these messages */
export function Summary(props: { message: Message; count: number; isOpen: boolean; onToggle: () => void }) {
  const t = texts.value
  const { message, count, isOpen, onToggle } = props
  // A chat that began with the summary.
  const isFirst = message.content === ''
  return (
    <section class="summary" aria-label={t.summary}>
      <details>
        <summary>{isFirst ? t.summary : plural(t.summaryOf, count)}</summary>
        <Markdown text={message.summary ?? ''} isComplete />
      </details>
      {!isFirst && (
        <div class="row">
          <Button onClick={onToggle} text={isOpen ? t.hideEarlier : t.showEarlier} />
          <Button onClick={() => editMessage(message, { summary: undefined })} text={t.undo} />
        </div>
      )}
    </section>
  )
}
