import { useState } from 'preact/hooks'
import { key, useKey } from '../state/api.ts'
import { texts } from '../texts/texts.ts'
import { Button, Form } from './forms.tsx'
import { Fault } from './layout.tsx'

/** Asks for a key and covers the page, since nothing works without it. */
export function KeyDialog() {
  const t = texts.value
  const [text, setText] = useState('')
  const given = text.trim()
  return (
    <div class="key-dialog" role="dialog" aria-modal="true" aria-label={t.keyTitle}>
      <Form class="dialog-body" onSubmit={() => given && useKey(given)}>
        <h2>{t.keyTitle}</h2>
        {key.value !== '' && <Fault text={t.keyWrong} isAnnounced />}
        <p>{t.keyText}</p>
        <label>
          {t.keyField}
          <input
            type="password"
            class="field"
            autocomplete="off"
            value={text}
            ref={field => field?.focus()}
            onInput={event => setText(event.currentTarget.value)}
          />
        </label>
        <Button kind="main" type="submit" disabled={given === ''} text={t.keyUse} />
      </Form>
    </div>
  )
}
