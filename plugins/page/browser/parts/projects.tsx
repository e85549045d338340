import type { ComponentChild } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import type { Chat } from '../state/chat-format.ts'
import { changeChat, chatsByProject, createChat, projects } from '../state/chats.ts'
import { deleteEverywhere } from '../state/kept-chats.ts'
import { go, linkTo, route } from '../state/route.ts'
import { fill, texts } from '../texts/texts.ts'
import { Menu, MenuItem, openDialog } from './controls.tsx'
import { Actions, Button, Field, Form } from './forms.tsx'
import { Icon } from './icons.tsx'
import { CHAT_DRAG, LINES_A_FRAME, useGradually } from './view-hooks.ts'

type LineOf = (chat: Chat) => ComponentChild

/** The projects with their chats. Chats can be dropped on a project. */
export function Projects({ lineOf }: { lineOf: LineOf }) {
  return (
    <>
      {projects.value.map(project => (
        <Project key={project.id} project={project} lineOf={lineOf} />
      ))}
    </>
  )
}

function Project({ project, lineOf }: { project: Chat; lineOf: LineOf }) {
  const t = texts.value
  const { id, title } = project
  const isCurrent = route.value[0] === 'project' && route.value[1] === id
  const own = chatsByProject.value.get(id) ?? []
  const [isOpen, setOpen] = useState(false)
  const isEntered = isCurrent || own.some(chat => chat.id === route.value[1])
  useEffect(() => {
    if (isEntered) setOpen(true)
  }, [isEntered])
  const count = useGradually(own.length, LINES_A_FRAME)
  const rename = (close: () => void) => <ProjectForm project={project} onDone={close} />
  const remove = (close: () => void) => <DeleteProject project={project} own={own} onDone={close} />
  return (
    <section
      onDragOver={event => event.dataTransfer?.types.includes(CHAT_DRAG) && event.preventDefault()}
      onDrop={event => {
        const chat = event.dataTransfer?.getData(CHAT_DRAG)
        if (!chat) return
        event.stopPropagation()
        setOpen(true)
        void changeChat(chat, { project: id })
      }}
    >
      <div class={`chat-line project ${isCurrent ? 'is-current' : ''}`}>
        <button
          type="button"
          class="icon-button"
          aria-expanded={isOpen}
          aria-label={fill(t.chatsOf, { name: title })}
          onClick={() => setOpen(!isOpen)}
        >
          <Icon name={isOpen ? 'down' : 'right'} size={16} />
        </button>
        <a href={linkTo('project', id)} aria-current={isCurrent ? 'page' : undefined} dir="auto">
          {title}
        </a>
        <Menu label={`${t.more}: ${title}`}>
          {() => (
            <>
              <MenuItem icon="plus" onSelect={() => go(['project', id])} text={t.newChat} />
              <MenuItem icon="edit" onSelect={() => openDialog(t.rename, rename, 'dialog-small')} text={t.rename} />
              <MenuItem
                icon="trash"
                danger
                onSelect={() => openDialog(fill(t.deleteProject, { name: title }), remove, 'dialog-small')}
                text={t.delete}
              />
            </>
          )}
        </Menu>
      </div>
      {isOpen && <ul>{own.slice(0, count).map(lineOf)}</ul>}
    </section>
  )
}

/** Asks for the name of a project. @param chat the chat that a new project is for */
export function ProjectForm(props: { project?: Chat; chat?: string | undefined; onDone: () => void }) {
  const t = texts.value
  const { project, chat, onDone } = props
  return (
    <Form
      class="form"
      onSubmit={async text => {
        const title = text('name')
        if (title === '') return
        onDone()
        if (project) return changeChat(project.id, { title })
        const { id } = await createChat({ title, isProject: true })
        if (chat) await changeChat(chat, { project: id })
        else go(['project', id])
      }}
    >
      <Field
        label={t.name}
        name="name"
        required
        maxLength={80}
        defaultValue={project?.title}
        ref={field => field?.focus()}
      />
      <Actions>
        <Button kind="main" type="submit" text={t.save} />
      </Actions>
    </Form>
  )
}

function DeleteProject({ project, own, onDone }: { project: Chat; own: readonly Chat[]; onDone: () => void }) {
  const t = texts.value
  const remove = async (gone: readonly Chat[]) => {
    onDone()
    if (gone.concat(project).some(({ id }) => id === route.value[1])) go(['chat'], true)
    // Chats of a missing project are listed like others.
    for (const { id } of [...gone, project]) await deleteEverywhere(id)
  }
  return (
    <>
      <p>{t.deleteProjectText}</p>
      <Actions>
        <Button onClick={onDone} text={t.cancel} />
        {own.length > 0 && <Button kind="danger" onClick={() => remove(own)} text={t.deleteChats} />}
        <Button kind="main" onClick={() => remove([])} text={t.keepChats} />
      </Actions>
    </>
  )
}
