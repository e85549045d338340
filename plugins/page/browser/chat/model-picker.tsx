import { useState } from 'preact/hooks'
import { Menu, MenuItem, SearchField } from '../parts/controls.tsx'
import { formatSize } from '../parts/formats.ts'
import { Icon } from '../parts/icons.tsx'
import { joinFacts } from '../parts/layout.tsx'
import { may } from '../state/me.ts'
import { linkTo } from '../state/route.ts'
import { chatModels, engineOf } from '../state/server-state.ts'
import { texts } from '../texts/texts.ts'

export function ModelPicker({ model, onChoose }: { model: string; onChoose: (name: string) => void }) {
  const t = texts.value
  const title = model || t.chooseModel
  return (
    <Menu label={`${t.model}: ${title}`} title={title} class="model-picker">
      {() => <ModelList model={model} onChoose={onChoose} />}
    </Menu>
  )
}

function ModelList({ model, onChoose }: { model: string; onChoose: (name: string) => void }) {
  const t = texts.value
  const [wanted, setWanted] = useState('')
  const all = chatModels.value
  const found = all.filter(({ name }) => name.toLowerCase().includes(wanted.toLowerCase()))
  return (
    <>
      {all.length > 5 && <SearchField label={t.findModel} value={wanted} onInput={setWanted} />}
      {all.length === 0 && <p class="menu-note">{t.noModels}</p>}
      <div class="menu-scroll">
        {found.map(({ name, size }) => {
          const note = joinFacts([size > 0 && formatSize(size), engineOf(name) && t.inMemory])
          return (
            <MenuItem key={name} text={name} note={note} checked={name === model} onSelect={() => onChoose(name)} />
          )
        })}
      </div>
      {may('operator') && (
        <a class="menu-item" href={linkTo('models', 'get')}>
          <Icon name="download" size={16} />
          <span>{t.getModel}</span>
        </a>
      )}
    </>
  )
}
